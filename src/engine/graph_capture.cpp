#include "engine/graph_capture.h"

#include <algorithm>
#include <cstdio>

#include "base/log.h"

namespace coppice {
namespace {

bool same_graph(const RoundShape& a, const RoundShape& b) {
  return a.batch == b.batch && a.max_rows == b.max_rows && a.drafting == b.drafting &&
         a.cut_by_cost == b.cut_by_cost && a.sample.greedy == b.sample.greedy;
}

std::int64_t fitting(const ModelRunner& runner, std::int64_t rows, std::int64_t sequences) {
  return std::min(bucket_at_least(rows), std::max(runner.max_verify_rows(), sequences));
}

}  // namespace

std::vector<RoundShape> shapes_to_capture(const ModelRunner& runner, const EngineConfig& config,
                                          bool custom_drafter) {
  const SpeculativeConfig& speculative = config.speculative;
  const bool drafts = custom_drafter || speculative.method != SpeculativeMethod::kNone;
  const bool automatic = speculative.is_automatic() && !custom_drafter;
  std::vector<RoundShape> shapes;
  const auto add = [&](std::int64_t sequences, std::int64_t rows, bool drafting) {
    for (const bool greedy : {true, false}) {
      const RoundShape shape = {.batch = runner.batch_bucket(sequences),
                                .max_rows = fitting(runner, rows, sequences),
                                .drafting = drafting,
                                .cut_by_cost = drafting && automatic,
                                .sample = {.greedy = greedy}};
      const bool known = std::any_of(shapes.begin(), shapes.end(), [&](const RoundShape& other) {
        return same_graph(shape, other);
      });
      if (!known) shapes.push_back(shape);
    }
  };
  for (std::int64_t sequences = 1; sequences <= config.max_num_seqs; ++sequences) {
    const std::int64_t most = sequences * (runner.max_nodes() + 1);
    add(sequences, sequences, false);
    if (!drafts) continue;
    if (automatic)
      for (const std::int32_t rows : kRowBuckets)
        if (rows >= sequences && rows <= fitting(runner, most, sequences))
          add(sequences, rows, true);
    add(sequences, most, true);
  }
  return shapes;
}

void capture_rounds(RunnerGroup& runner, const std::vector<RoundShape>& shapes,
                    const Clock& clock) {
  const std::int64_t start = clock.now_ns();
  const std::size_t free_before = runner.first().backend().memory().free_bytes;
  const std::size_t quarter = std::max<std::size_t>(shapes.size() / 4, 1);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    runner.capture(shapes[i]);
    if ((i + 1) % quarter == 0 && i + 1 < shapes.size())
      log_info("captured " + std::to_string(i + 1) + " of " + std::to_string(shapes.size()) +
               " round graphs");
  }
  runner.synchronize();
  const std::size_t free_after = runner.first().backend().memory().free_bytes;
  char line[160];
  std::snprintf(
      line, sizeof line, "captured %zu round graphs in %.2f s, %.0f MiB", shapes.size(),
      static_cast<double>(clock.now_ns() - start) / 1e9,
      free_before > free_after ? static_cast<double>(free_before - free_after) / 1048576 : 0.0);
  log_info(line);
}

}  // namespace coppice
