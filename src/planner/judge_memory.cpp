#include "planner/judge_memory.h"

#include <algorithm>
#include <functional>
#include <map>

#include "planner/print.h"

namespace coppice {
namespace {

// Positions that a benchmark's sequences may grow by (benchmark/bench_round.h).
constexpr std::int64_t kRoundSlack = 1024;

// A point of the file by itself: its buffers, and the workspaces that its kernels ask for.
struct Point {
  double buffers = 0;
  std::map<std::string, std::int64_t> workspaces;
  std::int64_t launches = 0;
};

Point point_of(const RoundFile& file, const MeasuredRound& round) {
  PaperOptions options;
  options.pads_rows = false;
  options.fuses_blocks = file.has_moe_block;
  options.max_batch = round.batch;
  options.max_budget = round.drafting ? round.rows / round.batch - 1 : 0;
  options.max_model_len = round.context + kRoundSlack;
  options.num_kv_blocks = round.batch * ((round.context + kRoundSlack) / kBlockSize + 1);
  options.prefill_rows = 1;
  NetworkOnPaper network(file.target, file.drafter, options);
  const CountedRound cost = count_round(round, network, {});
  return {.buffers = network.memory().reserved_round,
          .workspaces = network.workspaces(),
          .launches = cost.totals().launches};
}

// As workspaces grow: what is too small stays, the next is at least twice as large.
class GrowingWorkspaces {
 public:
  void ask(const std::map<std::string, std::int64_t>& needs) {
    for (const auto& [family, bytes] : needs) {
      std::int64_t& last = last_[family];
      if (last >= bytes) continue;
      last = std::max(bytes, 2 * last);
      total_ += reserved_for(last);
    }
  }
  // What small ones leave of a page is nobody else's.
  double total() const {
    const std::int64_t pages = (total_ + kDevicePage - 1) / kDevicePage;
    return static_cast<double>(pages * kDevicePage);
  }

 private:
  std::map<std::string, std::int64_t> last_;
  std::int64_t total_ = 0;
};

}  // namespace

std::vector<JudgedMemory> judge_memory(const RoundFile& file) {
  const NetworkOnPaper network = network_of(file);
  JudgedMemory target{"target", network.memory().reserved_target, file.weights_bytes};
  JudgedMemory drafter{"drafter", network.memory().reserved_drafter, file.drafter_bytes};
  JudgedMemory buffers{"caches and buffers"}, workspaces{"workspaces"}, graphs{"graphs"};
  std::vector<MeasuredRound> order = file.rounds;
  std::ranges::stable_sort(order, std::greater(), &MeasuredRound::rows);  // as points are opened
  GrowingWorkspaces growing;
  double launches = 0;
  for (const MeasuredRound& round : order) {
    const Point point = point_of(file, round);
    growing.ask(point.workspaces);
    buffers.predicted += point.buffers;
    buffers.allocated += round.buffers_bytes;
    workspaces.allocated += round.workspace_bytes;
    launches += static_cast<double>(point.launches);
    graphs.allocated += round.graph_bytes;
  }
  workspaces.predicted = growing.total();
  graphs.predicted = graph_bytes(launches);
  JudgedMemory sum{"all"};
  std::vector<JudgedMemory> all = {target, drafter, buffers, workspaces, graphs};
  for (const JudgedMemory& part : all) {
    sum.predicted += part.predicted;
    sum.allocated += part.allocated;
  }
  all.push_back(sum);
  return all;
}

std::string memory_as_text(const std::vector<JudgedMemory>& memory) {
  std::string out = "| memory | predicted GB | allocated GB | % |\n|---|---|---|---|\n";
  for (const JudgedMemory& part : memory)
    out += print("| %s | %.3f | %.3f | %s |\n", part.what.c_str(), part.predicted / 1e9,
                 part.allocated / 1e9,
                 part.allocated > 0 ? print("%+.1f", 100 * part.error()).c_str() : "-");
  return out;
}

}  // namespace coppice
