#include "planner/expert_overlap.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace coppice {
namespace {

std::string write(const std::string& text) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("coppice_overlap_" + std::to_string(::getpid()) + ".json");
  std::ofstream(path) << text;
  return path.string();
}

TEST(ExpertOverlapTest, ANumberHoldsForAllRows) {
  EXPECT_TRUE(ExpertOverlap::parse("0").is_none());
  const ExpertOverlap overlap = ExpertOverlap::parse("0.25");
  EXPECT_EQ(overlap.at(2), 0.25);
  EXPECT_EQ(overlap.at(64), 0.25);
  EXPECT_THROW(ExpertOverlap::parse("1.5"), Error);
}

TEST(ExpertOverlapTest, AFileIsInterpolatedInRows) {
  const std::string path = write(R"({"schema":"coppice-expert-overlap-1","model":"m","points":[
    {"rows":4,"overlap":0.1},{"rows":64,"overlap":0.3}]})");
  const ExpertOverlap overlap = ExpertOverlap::parse(path);
  EXPECT_EQ(overlap.at(2), 0.1);
  EXPECT_EQ(overlap.at(64), 0.3);
  EXPECT_GT(overlap.at(17), 0.1);
  EXPECT_LT(overlap.at(17), 0.3);
  EXPECT_EQ(overlap.source(), "measured on m");
}

TEST(ExpertOverlapTest, DamagedFilesAreNamed) {
  for (const char* text :
       {"{}", R"({"schema":"coppice-expert-overlap-1","model":"m","points":[]})"}) {
    const std::string path = write(text);
    try {
      ExpertOverlap::parse(path);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    }
  }
}

// Rows of a tree of the small model choose less alike than one could hope, but not independently.
TEST(ExpertOverlapTest, WhatWasMeasuredOnTheSmallModelIsRead) {
  const ExpertOverlap overlap =
      ExpertOverlap::parse(COPPICE_SOURCE_DIR "/docs/results/data/2026-11-30-tiny-k2-overlap.json");
  EXPECT_GT(overlap.at(8), 0);
  EXPECT_LT(overlap.at(8), 1);
}

}  // namespace
}  // namespace coppice
