// Reports of benchmarks with one value damaged: every reader of the planner takes them or refuses
// them by file, and what comes of them is printable numbers.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>

#include "base/error.h"
#include "planner/judge.h"
#include "planner/round_file.h"
#include "tests/planner/support/plans.h"

namespace coppice {
namespace {

const std::string kData = COPPICE_SOURCE_DIR "/docs/results/data/";

// Every number and array below `json`, of arrays their first element. Elements come before their
// array: whoever replaces that has new ones.
void collect(Json& json, std::vector<Json*>& places) {
  const auto add = [&](Json& value) {
    collect(value, places);
    if (value.is_number() || value.is_array()) places.push_back(&value);
  };
  if (json.is_object())
    for (auto& [key, value] : json.as_object()) add(value);
  if (json.is_array() && json.size() > 0) add(json.as_array()[0]);
}

const std::vector<Json>& damages() {
  static const std::vector<Json> kDamages = {std::numeric_limits<std::int64_t>::min(),
                                             -1,
                                             0,
                                             3,
                                             std::int64_t{1} << 40,
                                             1e-300,
                                             Json::array({1})};
  return kDamages;
}

class DamagedReportTest : public ::testing::Test {
 protected:
  ~DamagedReportTest() override { std::filesystem::remove(path_); }

  // Writes the report once for every damage of every place in `part` of it, and reads it by `use`;
  // how many were taken.
  int damage_everything(const Json& report, Json& part,
                        const std::function<void(const std::string&)>& use) const {
    std::vector<Json*> places;
    collect(part, places);
    EXPECT_GT(places.size(), 1u);
    int taken = 0;
    for (Json* const place : places) {
      const Json before = *place;
      for (const Json& damage : damages()) {
        *place = damage;
        std::ofstream(path_) << write_json(report);
        try {
          use(path_);
          taken += 1;
        } catch (const Error& error) {
          EXPECT_NE(std::string(error.what()).find(path_), std::string::npos) << error.what();
        }
      }
      *place = before;
    }
    return taken;
  }

  // A plan calibrated with the file.
  static void plan(const std::string& path) {
    static const PlanRequest kRequest = [] {
      PlanRequest request = testing::kimi_request(8);
      request.target = kimi_k2_config(4, 384);
      request.drafter.clear();
      request.drafter_config.reset();
      request.batches = {1};
      request.contexts = {64};
      return request;
    }();
    const Plan plan = make_plan(kRequest, times_from_file(path));
    for (const PlannedRound& round : plan.devices[0].points[0].rounds) {
      EXPECT_TRUE(std::isfinite(round.tokens_per_s()) && round.tokens_per_s() > 0) << path;
      for (const OpTime& part : round.time.parts) EXPECT_GE(part.us(), 0);
    }
    EXPECT_FALSE(plan_as_text(plan).empty());
  }

  const std::string path_ = (std::filesystem::temp_directory_path() /
                             ("coppice_damaged_" + std::to_string(::getpid()) + ".json"))
                                .string();
};

TEST_F(DamagedReportTest, Rounds) {
  Json report = read_json_file(kData + "2026-11-30-h200-planner-tiny.json");
  Json::Array& rounds = report["rounds"].as_array();
  const auto drafts = [](const Json& round) { return round.find("drafting")->as_bool(); };
  report["rounds"] = Json::array({*std::ranges::find_if(rounds, drafts)});
  const int taken = damage_everything(report, report, [](const std::string& path) {
    plan(path);
    judgement_as_text(judge(path));
    memory_as_text(judge_memory(read_round_file(path)));
  });
  EXPECT_GT(taken, 0);
}

TEST_F(DamagedReportTest, Kernels) {
  Json report = read_json_file(kData + "2026-11-30-h200-whole-kernels.json");
  // One case of every kernel.
  Json::Array cases;
  for (const Json& entry : report["cases"].as_array()) {
    const auto same = [&](const Json& other) {
      return *other.find("kernel") == *entry.find("kernel");
    };
    if (std::ranges::none_of(cases, same)) cases.push_back(entry);
  }
  report["cases"] = Json::array();
  int taken = damage_everything(report, report, plan);
  for (const Json& entry : cases) {
    report["cases"] = Json::array({entry});
    taken += damage_everything(report, report["cases"], plan);
  }
  EXPECT_GT(taken, 0);
}

}  // namespace
}  // namespace coppice
