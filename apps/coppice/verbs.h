// The verbs of the binary. Each parses its own flags and returns the process exit code; errors are
// thrown.
#pragma once

namespace coppice {

int run_batch(int argc, char** argv);
int run_bench(int argc, char** argv);
int run_bench_latency(int argc, char** argv);
int run_bench_serve(int argc, char** argv);
int run_bench_sweep(int argc, char** argv);
int run_bench_throughput(int argc, char** argv);
int run_chat(int argc, char** argv);
int run_generate(int argc, char** argv);
int run_inspect(int argc, char** argv);
int run_plan(int argc, char** argv);
int run_quantize(int argc, char** argv);
int run_repack(int argc, char** argv);
int run_serve(int argc, char** argv);
int run_top(int argc, char** argv);

}  // namespace coppice
