#include "client/metrics_snapshot.h"

#include <gtest/gtest.h>

#include <cmath>

#include "client/top_view.h"

namespace coppice {
namespace {

constexpr std::string_view kBefore =
    "# HELP x y\n# TYPE x counter\nx{model=\"a,b\",engine=\"0\"} 1\nx{model=\"c\\\"d\"} 2.5\nplain "
    "7\n"
    "h_bucket{le=\"0.1\"} 4\nh_bucket{le=\"1\"} 4\nh_bucket{le=\"+Inf\"} 4\n";
constexpr std::string_view kAfter =
    "h_bucket{le=\"0.1\"} 4\nh_bucket{le=\"1\"} 12\nh_bucket{le=\"+Inf\"} 14\n";

TEST(MetricsSnapshotTest, ReadsLabelsAndSums) {
  const MetricsSnapshot metrics(kBefore);
  EXPECT_EQ(metrics.sum("x"), 3.5);
  EXPECT_EQ(metrics.sum("plain"), 7);
  EXPECT_EQ(metrics.sum("absent"), 0);
  EXPECT_FALSE(metrics.has("absent"));
  const auto values = metrics.by_label("x", "model");
  ASSERT_EQ(values.size(), 2u);
  EXPECT_EQ(values[0], (std::pair<std::string, double>("a,b", 1)));
  EXPECT_EQ(values[1].first, "c\"d");
}

TEST(MetricsSnapshotTest, QuantileIsOfWhatCameSince) {
  const MetricsSnapshot before(kBefore), after(kAfter);
  // 8 between 0.1 and 1, 2 above: the fifth of ten lies at 5/8 of the bucket.
  EXPECT_NEAR(after.quantile("h", 0.5, before), 0.1 + 0.9 * 5 / 8, 1e-12);
  EXPECT_EQ(after.quantile("h", 0.99, before), 1);  // in the last bucket: its lower end
  EXPECT_TRUE(std::isnan(after.quantile("h", 0.5, after)));
  EXPECT_TRUE(std::isnan(after.quantile("absent", 0.5, before)));
}

TEST(TopViewTest, ShowsRatesAndRounds) {
  const MetricsSnapshot before(
      "vllm:generation_tokens_total 100\nvllm:spec_decode_num_drafts_total 10\n"
      "vllm:spec_decode_num_draft_tokens_total 80\nvllm:spec_decode_num_accepted_tokens_total 20\n"
      "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"} 8\n"
      "coppice:decode_seconds_total 1\ncoppice:round_verb_seconds_total{verb=\"verify\"} 0.5\n");
  const MetricsSnapshot now(
      "vllm:generation_tokens_total 160\nvllm:spec_decode_num_drafts_total 20\n"
      "vllm:spec_decode_num_draft_tokens_total 160\nvllm:spec_decode_num_accepted_tokens_total 40\n"
      "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"} 13\n"
      "coppice:decode_seconds_total 2\ncoppice:round_verb_seconds_total{verb=\"verify\"} 1.25\n"
      "coppice:ready 1\n");
  const std::string page = top_view("http://x", before, now, 2);
  for (const char* part :
       {"generation 30.0 tokens/s", "3.00 tokens a round, 8.0 nodes verified",
        "25.0 % of them accepted", "depth 1", " 50.0 %", "verify", " 75.0 %", "http://x   ready"})
    EXPECT_NE(page.find(part), std::string::npos) << part << "\n" << page;
  EXPECT_NE(top_view("x", now, MetricsSnapshot(), 1).find("NOT READY"), std::string::npos);
}

}  // namespace
}  // namespace coppice
