// The planner against rounds measured on one H200 (docs/results/data): calibrated on 1, 8 and 64
// rows at contexts of 1k and 32k, judged on the others.
#include "planner/judge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"

namespace coppice {
namespace {

// The newest report of a name: files' names begin with the date.
std::string newest(const std::string& name) {
  std::string path;
  for (const auto& entry :
       std::filesystem::directory_iterator(COPPICE_SOURCE_DIR "/docs/results/data"))
    if (entry.path().string().ends_with("-h200-" + name + ".json"))
      path = std::max(path, entry.path().string());
  return path;
}

const Judgement& measured() {
  static const Judgement judgement = judge(newest("planner-tp8"));
  return judgement;
}

// Four whole layers (TP1).
const Judgement& whole_layers() {
  static const Judgement judgement = judge(newest("planner-tp1"));
  return judgement;
}

TEST(JudgeTest, TotalsOfTheJudgedRoundsAreWithinFivePercent) {
  int judged = 0;
  for (const JudgedRound& round : measured().rounds) {
    judged += round.is_calibration ? 0 : 1;
    EXPECT_LT(std::abs(round.total_error()), 0.05)
        << round.measured.rows << " rows, context " << round.measured.context;
  }
  EXPECT_EQ(judged, 15);
  EXPECT_EQ(measured().rounds.size(), 21u);
}

// Stages of judged rounds that are off by ten per cent or more.
std::vector<std::string> beyond_ten_percent(const Judgement& judgement) {
  std::vector<std::string> beyond;
  for (const JudgedRound& round : judgement.rounds)
    for (const auto& [part, us] : round.measured.us)
      if (!round.is_calibration && us > 0 && std::abs(round.error(part)) >= 0.1)
        beyond.push_back(std::string(name_of(part)) + ", " + std::to_string(round.measured.rows) +
                         " rows at " + std::to_string(round.measured.context));
  return beyond;
}

TEST(JudgeTest, StagesAreWithinTenPercent) {
  EXPECT_EQ(beyond_ten_percent(measured()), std::vector<std::string>{});
  EXPECT_EQ(beyond_ten_percent(whole_layers()), std::vector<std::string>{});
}

// Of the same kernels, measured by another job, at 4k as well, in one pass; no constant was set
// with these in view.
TEST(JudgeTest, RoundsBesideThePeersAreWithinTheSameBounds) {
  const Judgement beside_peers = judge(newest("whole-rounds-tp8"));
  EXPECT_EQ(beside_peers.rounds.size(), 16u);
  for (const JudgedRound& round : beside_peers.rounds)
    EXPECT_LT(std::abs(round.total_error()), 0.05)
        << round.measured.rows << " rows, context " << round.measured.context;
  EXPECT_EQ(beyond_ten_percent(beside_peers), std::vector<std::string>{});
}

// Of kernels a few hours older, at 4k as well: the forms that changed since are calibrated.
TEST(JudgeTest, EarlierKernelsAreNotFar) {
  const Judgement earlier =
      judge(COPPICE_SOURCE_DIR "/docs/results/data/2026-11-30-h200-rounds-tp8.json");
  EXPECT_EQ(earlier.rounds.size(), 16u);
  for (const JudgedRound& round : earlier.rounds) {
    EXPECT_LT(std::abs(round.total_error()), 0.05)
        << round.measured.rows << " rows, context " << round.measured.context;
    EXPECT_LT(std::abs(round.error(Part::kAttention)), 0.06)
        << round.measured.rows << " rows, context " << round.measured.context;
  }
}

TEST(JudgeTest, WholeLayersAreWithinFivePercent) {
  EXPECT_EQ(whole_layers().rounds.size(), 21u);
  for (const JudgedRound& round : whole_layers().rounds)
    EXPECT_LT(std::abs(round.total_error()), 0.05)
        << round.measured.rows << " rows, context " << round.measured.context;
}

// All parts together, captured rounds among them: small parts alone are further off.
TEST(JudgeTest, MemoryIsWithinTwoPercent) {
  int judged = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(COPPICE_SOURCE_DIR "/docs/results/data")) {
    const std::string path = entry.path().string();
    if (path.find("-planner-") == std::string::npos) continue;
    judged += 1;
    EXPECT_LT(std::abs(judge_memory(read_round_file(path)).back().error()), 0.02) << path;
  }
  EXPECT_GE(judged, 4);
}

// What `coppice plan` says without --calibration: kernels measured alone, none of them in a round.
TEST(JudgeTest, KernelsAlonePredictRoundsWithinNinePercent) {
  std::vector<std::string> beyond;
  const RoundTimes kernels(KernelTimes::shipped());
  const auto add_beyond = [&](const std::string& name, const Judgement& judgement) {
    const RoundFile& file = judgement.file;
    NetworkOnPaper network = network_of(file);
    for (const MeasuredRound& round : file.rounds) {
      const Routing routing = measured_routing(round, file.target, /*alone=*/false);
      const RoundTime time =
          kernels.time(count_round(round, network, routing), file.device, 1, /*host_us=*/0);
      if (std::abs(time.total().us() / round.total_us - 1) >= 0.09)
        beyond.push_back(name + ", " + std::to_string(round.rows) + " rows at " +
                         std::to_string(round.context));
    }
  };
  add_beyond("TP-8 rank", measured());
  add_beyond("whole layers", whole_layers());
  // Nine and eleven per cent too slow: in a row the products of one token take a sixth less than
  // alone (docs/results/planner-h200.md).
  EXPECT_EQ(beyond,
            (std::vector<std::string>{"TP-8 rank, 1 rows at 1024", "TP-8 rank, 1 rows at 8192"}));
}

TEST(JudgeTest, AFileWithoutItsCalibrationPointsIsRefused) {
  EXPECT_THROW(
      judge(COPPICE_SOURCE_DIR "/docs/results/data/2026-11-29-h200-rounds-tp8-batch8.json"), Error);
}

TEST(JudgeTest, ThePublishedTableIsWhatComesOut) {
  std::ifstream file(COPPICE_SOURCE_DIR "/docs/results/planner-h200.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  for (const Judgement* const judgement : {&measured(), &whole_layers()})
    EXPECT_NE(page.find(judgement_as_text(*judgement)), std::string::npos)
        << "docs/results/planner-h200.md differs from:\n"
        << judgement_as_text(*judgement);
}

}  // namespace
}  // namespace coppice
