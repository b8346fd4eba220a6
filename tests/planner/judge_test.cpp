// The planner against rounds measured on one H200 (docs/results/data): calibrated on 1, 8 and 64
// rows at contexts of 1k and 32k, judged on the others.
#include "planner/judge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>

#include "base/error.h"

namespace coppice {
namespace {

const Judgement& measured() {
  static const Judgement judgement =
      judge(COPPICE_SOURCE_DIR "/docs/results/data/2026-11-29-h200-rounds-tp8.json");
  return judgement;
}

// Four whole layers (TP1), measured at 4k and 32k: only the latter calibrates.
const Judgement& whole_layers() {
  static const Judgement judgement =
      judge(COPPICE_SOURCE_DIR "/docs/results/data/2026-11-29-h200-rounds-tp1.json");
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

// Experts are most of a step from eight rows on.
TEST(JudgeTest, ExpertsAreWithinTenPercent) {
  for (const JudgedRound& round : measured().rounds)
    EXPECT_LT(std::abs(round.error(Part::kExperts)), 0.1)
        << round.measured.rows << " rows, context " << round.measured.context;
}

TEST(JudgeTest, WholeLayersAreWithinFivePercent) {
  EXPECT_EQ(whole_layers().rounds.size(), 8u);
  for (const JudgedRound& round : whole_layers().rounds)
    EXPECT_LT(std::abs(round.total_error()), 0.05)
        << round.measured.rows << " rows, context " << round.measured.context;
}

TEST(JudgeTest, WeightsAreWithinTwoPercent) {
  for (const Judgement* const judgement : {&measured(), &whole_layers()})
    EXPECT_NEAR(judgement->predicted_weights / judgement->file.weights_bytes, 1, 0.02);
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
