// coppice bench kernels | round: times kernels and whole rounds on random weights (docs/bench.md).
#include <CLI/CLI.hpp>
#include <cstdio>

#include "backend/factory/make_backend.h"
#include "benchmark/kernel_bench.h"
#include "benchmark/round_bench.h"
#include "comm/rank_threads.h"
#include "output_file.h"
#include "parse_flags.h"
#include "verbs.h"

namespace coppice {
namespace {

// Files are written again after every case and every point: a run that is stopped leaves what it
// has.
void write_report(const OutputFile& file, const Json& json) {
  file.write(write_json(json, {.indent = 1}) + "\n");
}

std::string command_line(int argc, char** argv) {
  std::string text = "coppice";
  for (int i = 0; i < argc; ++i) text += std::string(" ") + argv[i];
  return text;
}

int bench_kernels(const BackendOptions& device, const KernelBenchOptions& options,
                  const OutputFile& json) {
  const auto backend = make_backend(device);
  const auto meter = make_device_meter(*backend, device);
  const auto end = [&](const KernelReport& report) {
    if (report.results.size() == 1) std::fputs(table_head(report.ceiling).c_str(), stdout);
    std::fputs(table_line(report.results.back(), report.ceiling).c_str(), stdout);
    std::fflush(stdout);
    write_report(json, report.as_json());
  };
  const auto begin = [](std::size_t done, std::size_t total, const std::string& key) {
    std::fprintf(stderr, "[%zu/%zu] %s\n", done + 1, total, key.c_str());
  };
  const KernelReport report =
      run_kernel_bench(*backend, *meter, options, {.begin = begin, .end = end});
  return report.all_right() ? 0 : 1;
}

// The table and the file are rank 0's.
void bench_rank(const BackendOptions& device, const RoundBenchOptions& options,
                const OutputFile& json) {
  auto backend = make_backend(device);
  const auto meter = make_device_meter(*backend, device);
  RoundBenchObserver observer;
  if (options.rank == 0)
    observer = {
        .progress = [](const std::string& what) { std::fprintf(stderr, "%s\n", what.c_str()); },
        .line =
            [](const std::string& line) {
              std::fputs(line.c_str(), stdout);
              std::fflush(stdout);
            },
        .report = [&](const Json& report) { write_report(json, report); }};
  run_round_bench(std::move(backend), *meter, options, observer);
}

void bench_all_ranks(const BackendOptions& device, const RoundBenchOptions& options,
                     const OutputFile& json) {
  check_rank_devices(device.device, options.num_ranks);
  RankThreads threads(options.num_ranks);
  threads.run(
      [&](std::int64_t rank) {
        Communicator& communicator = threads.communicator(rank);
        BackendOptions own_device = device;
        own_device.communicator = &communicator;
        RoundBenchOptions own = options;
        own.rank = rank;
        own.meet = [&communicator] { communicator.barrier(); };
        bench_rank(own_device, own, json);
      },
      RankThreads::Patience::kEndless);
}

// What both verbs read.
struct BenchFlags {
  BackendOptions device;
  KernelBenchOptions kernels;
  RoundBenchOptions round;
  bool all_ranks = false;
  std::string json, peers;
};

void add_device_flags(CLI::App& verb, BenchFlags& flags) {
  verb.add_option("--device", flags.device.device, "auto, cpu, cuda, cuda:N");
  verb.add_option("--threads", flags.device.num_threads, "CPU threads; 0: all");
  verb.add_option("--json", flags.json, "write the results to this file");
}

void add_kernel_flags(CLI::App& verb, BenchFlags& flags) {
  KernelBenchOptions& kernels = flags.kernels;
  add_device_flags(verb, flags);
  verb.add_option("--filter", kernels.filter,
                  "only cases whose name contains one of these, separated by commas");
  verb.add_option("--peers", flags.peers, "times of other kernels, written by bench/peers");
  verb.add_flag("--check-only", kernels.check_only, "compare outputs, time nothing");
}

void add_round_flags(CLI::App& verb, BenchFlags& flags) {
  RoundBenchOptions& round = flags.round;
  add_device_flags(verb, flags);
  verb.add_flag("--tiny", round.tiny, "widths of the model in models/, as CPUs take them");
  verb.add_option("--layers", round.num_layers, "layers of the network")->check(CLI::Range(2, 128));
  verb.add_option("--tp", round.num_ranks, "widths of one rank of so many (also -tp)")
      ->check(CLI::IsMember({1, 2, 4, 8}));
  verb.add_flag("--all-ranks", flags.all_ranks,
                "all ranks at once, each on a GPU of its own, and what passes between them");
  verb.add_option("--context", round.contexts, "positions in the cache")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 24));
  verb.add_option("--rows", round.rows, "rows of the verify step")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 16));
  verb.add_option("--batch", round.batches, "sequences")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 16));
  CLI::Option* const eager = verb.add_flag("--eager", round.eager, "also without graphs");
  verb.add_option("--repeats", round.repeats, "of a point in a pass")->check(CLI::Range(1, 1000));
  verb.add_option("--runs", round.runs, "interleaved passes over all points, captured ones")
      ->check(CLI::Range(1, 100))
      ->excludes(eager);
  verb.add_option("--peers", flags.peers,
                  "times of other kernels, written by bench/peers; summed over a step");
}

}  // namespace

int run_bench(int argc, char** argv) {
  CLI::App app("Times kernels and whole rounds on random weights.", "coppice bench");
  app.require_subcommand(1);
  BenchFlags flags;
  flags.kernels.command = flags.round.command = command_line(argc, argv);
  add_kernel_flags(*app.add_subcommand("kernels", "every kernel over its shapes"), flags);
  CLI::App* const round_verb =
      app.add_subcommand("round", "one decode round by stage, on random weights of K2.6's shapes");
  add_round_flags(*round_verb, flags);
  if (const auto code = parse_flags(app, argc, argv)) return *code;
  if (!flags.peers.empty()) flags.kernels.peers = flags.round.peers = read_peers(flags.peers);
  const OutputFile json("--json", flags.json);
  if (!round_verb->parsed()) return bench_kernels(flags.device, flags.kernels, json);
  const bool all_ranks = flags.all_ranks && flags.round.num_ranks > 1;
  (all_ranks ? bench_all_ranks : bench_rank)(flags.device, flags.round, json);
  return 0;
}

}  // namespace coppice
