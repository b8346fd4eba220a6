// coppice quantize IN OUT: routed experts of a BF16 or FP8 model to INT4 in groups of 32.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "io/checkpoint_quantizer.h"
#include "io/inspect_report.h"
#include "io/model_path.h"
#include "parse_flags.h"
#include "progress_bar.h"
#include "verbs.h"

namespace coppice {

int run_quantize(int argc, char** argv) {
  CLI::App app("Routed experts to INT4 (compressed-tensors pack-quantized, group 32, symmetric)");
  app.name("coppice quantize");
  std::string in, out;
  double shard_gb = 5;
  bool quiet = false;
  QuantizeOptions options;
  app.add_option("in", in, "model folder or hub id, BF16 or FP8 safetensors")->required();
  app.add_option("out", out, "folder to write; absent or empty")->required();
  app.add_option("--shard-size", shard_gb, "largest shard in GB (default 5)")
      ->check(CLI::Range(0.001, 1000.0));
  app.add_option("--threads", options.num_threads, "default: all CPUs")->check(CLI::Range(1, 1024));
  app.add_flag("--quiet", quiet, "no progress bar");
  if (const auto code = parse_flags(app, argc, argv)) return *code;
  options.shard_bytes = static_cast<std::uint64_t>(shard_gb * 1e9);
  ProgressBar bar("quantising", quiet);
  options.progress = [&](std::int64_t done, std::int64_t total) { bar.update(done, total); };
  const QuantizeResult result = quantize_checkpoint(resolve_model(in), out, options);
  std::printf(
      "%s: %lld weights to INT4, %lld other tensors, %s to %s in %zu shard(s), relative error "
      "%.4f\n",
      out.c_str(), static_cast<long long>(result.quantized_tensors),
      static_cast<long long>(result.other_tensors), format_bytes(result.source_bytes).c_str(),
      format_bytes(result.written_bytes).c_str(), result.shards, result.relative_error);
  return 0;
}

}  // namespace coppice
