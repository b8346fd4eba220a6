// coppice repack MODEL --out DIR: routed experts in the layout of the CUDA kernels, on disk.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "backend/factory/make_backend.h"
#include "io/inspect_report.h"
#include "io/model_path.h"
#include "model/repack_checkpoint.h"
#include "parse_flags.h"
#include "progress_bar.h"
#include "verbs.h"

namespace coppice {

int run_repack(int argc, char** argv) {
  CLI::App app(
      "Writes a model whose routed experts lie as the CUDA kernels read them, a part for every "
      "rank. "
      "Loading then copies; without it, experts are repacked on the GPU while loading.");
  app.name("coppice repack");
  std::string model, out;
  bool quiet = false;
  RepackOptions options;
  app.add_option("model", model, "model folder or hub id, INT4 experts")->required();
  app.add_option("--out", out, "folder to write; absent or empty")->required();
  app.add_option("--tensor-parallel-size,--tp", options.num_ranks,
                 "ranks it will be loaded by (also -tp)")
      ->check(CLI::Range(1, 1024));
  app.add_option("--threads", options.num_threads, "default: all CPUs")->check(CLI::Range(1, 1024));
  app.add_flag("--quiet", quiet, "no progress bar");
  if (const auto code = parse_flags(app, argc, argv)) return *code;
  options.repacker = make_expert_repacker("cuda", options.num_threads);
  ProgressBar bar("repacking", quiet);
  options.progress = [&](std::int64_t done, std::int64_t total) { bar.update(done, total); };
  const RepackResult result = repack_checkpoint(resolve_model(model), out, options);
  std::printf("%s: experts of %lld layers for %lld rank(s), %s to %s\n", out.c_str(),
              static_cast<long long>(result.layers), static_cast<long long>(options.num_ranks),
              format_bytes(result.source_bytes).c_str(),
              format_bytes(result.written_bytes).c_str());
  return 0;
}

}  // namespace coppice
