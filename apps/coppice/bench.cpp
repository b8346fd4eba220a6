// coppice bench kernels | round: times kernels and whole rounds on random weights (docs/bench.md).
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>

#include "backend/factory/make_backend.h"
#include "benchmark/kernel_bench.h"
#include "benchmark/round_bench.h"
#include "comm/rank_threads.h"
#include "parse_flags.h"
#include "verbs.h"

namespace coppice {
namespace {

void write_file(const std::string& path, const Json& json) {
  if (path.empty()) return;
  std::ofstream file(path, std::ios::binary);
  file << write_json(json, {.indent = 1}) << "\n";
  if (!file.flush()) throw Error(ErrorKind::kUnavailable, "--json " + path + ": cannot be written");
}

std::string command_line(int argc, char** argv) {
  std::string text = "coppice";
  for (int i = 0; i < argc; ++i) text += std::string(" ") + argv[i];
  return text;
}

int bench_kernels(const BackendOptions& device, const KernelBenchOptions& options,
                  const std::string& json) {
  const auto backend = make_backend(device);
  const auto meter = make_device_meter(*backend, device);
  // The file is written again after every case: a run that is stopped leaves what it has.
  const auto end = [&](const KernelReport& report) {
    if (report.results.size() == 1) std::fputs(table_head(report.ceiling).c_str(), stdout);
    std::fputs(table_line(report.results.back(), report.ceiling).c_str(), stdout);
    std::fflush(stdout);
    write_file(json, report.as_json());
  };
  const auto begin = [](std::size_t done, std::size_t total, const std::string& key) {
    std::fprintf(stderr, "[%zu/%zu] %s\n", done + 1, total, key.c_str());
  };
  const KernelReport report =
      run_kernel_bench(*backend, *meter, options, {.begin = begin, .end = end});
  return report.all_right() ? 0 : 1;
}

// The table is rank 0's.
Json bench_rank(const BackendOptions& device, const RoundBenchOptions& options) {
  auto backend = make_backend(device);
  const auto meter = make_device_meter(*backend, device);
  RoundBenchObserver observer = {.progress = [](const std::string&) {},
                                 .line = [](const std::string&) {}};
  if (options.rank == 0)
    observer = {
        .progress = [](const std::string& what) { std::fprintf(stderr, "%s\n", what.c_str()); },
        .line =
            [](const std::string& line) {
              std::fputs(line.c_str(), stdout);
              std::fflush(stdout);
            }};
  return run_round_bench(std::move(backend), *meter, options, observer);
}

Json bench_all_ranks(const BackendOptions& device, const RoundBenchOptions& options) {
  check_rank_devices(device.device, options.num_ranks);
  RankThreads threads(options.num_ranks);
  Json report;
  threads.run(
      [&](std::int64_t rank) {
        Communicator& communicator = threads.communicator(rank);
        BackendOptions own_device = device;
        own_device.communicator = &communicator;
        RoundBenchOptions own = options;
        own.rank = rank;
        own.meet = [&communicator] { communicator.barrier(); };
        Json mine = bench_rank(own_device, own);
        if (rank == 0) report = std::move(mine);
      },
      RankThreads::Patience::kEndless);
  return report;
}

}  // namespace

int run_bench(int argc, char** argv) {
  CLI::App app("Times kernels and whole rounds on random weights.", "coppice bench");
  app.require_subcommand(1);
  std::string json, peers;
  BackendOptions device;
  KernelBenchOptions kernels;
  kernels.command = command_line(argc, argv);
  CLI::App* const kernels_verb = app.add_subcommand("kernels", "every kernel over its shapes");
  kernels_verb->add_option("--device", device.device, "auto, cpu, cuda, cuda:N");
  kernels_verb->add_option("--threads", device.num_threads, "CPU threads; 0: all");
  kernels_verb->add_option("--filter", kernels.filter,
                           "only cases whose name contains one of these, separated by commas");
  kernels_verb->add_option("--peers", peers, "times of other kernels, written by bench/peers");
  kernels_verb->add_option("--json", json, "write the results to this file");
  kernels_verb->add_flag("--check-only", kernels.check_only, "compare outputs, time nothing");

  RoundBenchOptions round;
  round.command = kernels.command;
  CLI::App* const round_verb =
      app.add_subcommand("round", "one decode round by stage, on random weights of K2.6's shapes");
  round_verb->add_option("--device", device.device, "auto, cpu, cuda, cuda:N");
  round_verb->add_option("--threads", device.num_threads, "CPU threads; 0: all");
  round_verb->add_flag("--tiny", round.tiny, "widths of the model in models/, as CPUs take them");
  round_verb->add_option("--layers", round.num_layers, "layers of the network")
      ->check(CLI::Range(2, 128));
  round_verb->add_option("--tp", round.num_ranks, "widths of one rank of so many (also -tp)")
      ->check(CLI::IsMember({1, 2, 4, 8}));
  bool all_ranks = false;
  round_verb->add_flag("--all-ranks", all_ranks,
                       "all ranks at once, each on a GPU of its own, and what passes between them");
  round_verb->add_option("--context", round.contexts, "positions in the cache")->delimiter(',');
  round_verb->add_option("--rows", round.rows, "rows of the verify step")->delimiter(',');
  round_verb->add_option("--batch", round.batches, "sequences")->delimiter(',');
  round_verb->add_flag("--eager", round.eager, "also without graphs");
  round_verb->add_option("--repeats", round.repeats, "of a point in a pass")
      ->check(CLI::Range(1, 1000));
  round_verb->add_option("--runs", round.runs, "interleaved passes over all points")
      ->check(CLI::Range(1, 100));
  round_verb->add_option("--peers", peers,
                         "times of other kernels, written by bench/peers; summed over a step");
  round_verb->add_option("--json", json, "write the results to this file");
  if (const auto code = parse_flags(app, argc, argv)) return *code;
  if (!peers.empty()) kernels.peers = round.peers = read_peers(peers);
  if (!round_verb->parsed()) return bench_kernels(device, kernels, json);
  write_file(json, all_ranks && round.num_ranks > 1 ? bench_all_ranks(device, round)
                                                    : bench_rank(device, round));
  return 0;
}

}  // namespace coppice
