#include "client/load_report.h"

#include <gtest/gtest.h>

#include "client/pareto_plot.h"

namespace coppice {
namespace {

std::vector<LoadResult> three_results() {
  LoadResult a{.success = true,
               .prompt_len = 10,
               .output_len = 3,
               .start_s = 0,
               .ttft_s = 0.1,
               .latency_s = 0.3,
               .itl_s = {0.2}};
  LoadResult b{.success = true,
               .prompt_len = 20,
               .output_len = 5,
               .start_s = 1.5,
               .ttft_s = 0.2,
               .latency_s = 0.6,
               .itl_s = {0.1, 0.3}};
  LoadResult c{.success = false, .error = "HTTP 503", .prompt_len = 99};
  return {a, b, c};
}

TEST(LoadReportTest, PercentileIsNumpys) {
  EXPECT_DOUBLE_EQ(percentile({4, 1, 3, 2}, 50), 2.5);
  EXPECT_DOUBLE_EQ(percentile({4, 1, 3, 2}, 99), 3.97);
  EXPECT_DOUBLE_EQ(percentile({7}, 10), 7);
  EXPECT_DOUBLE_EQ(percentile({}, 10), 0);
}

TEST(LoadReportTest, MetricsAreNamed) {
  EXPECT_EQ(parse_metrics("ttft,,e2el"), (std::vector<std::string>{"ttft", "e2el"}));
  EXPECT_THROW(parse_metrics("ttft,topt"), Error);
}

// Worked by hand: TPOT of a is 0.2/2, of b 0.4/4; c counts as failed only.
TEST(LoadReportTest, TextIsVllms) {
  ReportOptions options{
      .goodput = parse_goodput({"ttft:150", "tpot:100"}), .request_rate = 4, .max_concurrency = 2};
  LoadReport report = summarize(three_results(), 4, options);
  report.drafts = DraftStats{
      .drafts = 10, .draft_tokens = 80, .accepted_tokens = 20, .per_position = {0.9, 0.5}};
  const std::string expected =
      "============ Serving Benchmark Result ============\n"
      "Successful requests:                     2         \n"
      "Failed requests:                         1         \n"
      "Maximum request concurrency:             2         \n"
      "Request rate configured (RPS):           4.00      \n"
      "Benchmark duration (s):                  4.00      \n"
      "Total input tokens:                      30        \n"
      "Total generated tokens:                  8         \n"
      "Request throughput (req/s):              0.50      \n"
      "Request goodput (req/s):                 0.25      \n"
      "Output token throughput (tok/s):         2.00      \n"
      "Peak output token throughput (tok/s):    3.33      \n"
      "Peak concurrent requests:                1.00      \n"
      "Total token throughput (tok/s):          9.50      \n"
      "---------------Time to First Token----------------\n"
      "Mean TTFT (ms):                          150.00    \n"
      "Median TTFT (ms):                        150.00    \n"
      "P99 TTFT (ms):                           199.00    \n"
      "-----Time per Output Token (excl. 1st token)------\n"
      "Mean TPOT (ms):                          100.00    \n"
      "Median TPOT (ms):                        100.00    \n"
      "P99 TPOT (ms):                           100.00    \n"
      "---------------Inter-token Latency----------------\n"
      "Mean ITL (ms):                           200.00    \n"
      "Median ITL (ms):                         200.00    \n"
      "P99 ITL (ms):                            298.00    \n"
      "----------------End-to-end Latency----------------\n"
      "Mean E2EL (ms):                          450.00    \n"
      "Median E2EL (ms):                        450.00    \n"
      "P99 E2EL (ms):                           597.00    \n"
      "---------------Speculative Decoding---------------\n"
      "Acceptance rate (%):                     25.00     \n"
      "Acceptance length:                       3.00      \n"
      "Drafts:                                  10        \n"
      "Draft tokens:                            80        \n"
      "Accepted tokens:                         20        \n"
      "Per-position acceptance (%):\n"
      "  Position 0:                            90.00     \n"
      "  Position 1:                            50.00     \n"
      "==================================================\n";
  EXPECT_EQ(report_text(report, options), expected);
  const Json json = report_json(report, options);
  EXPECT_EQ(json.find("completed")->as_int(), 2);
  EXPECT_DOUBLE_EQ(json.find("p99_itl_ms")->as_double(), 298);
  EXPECT_DOUBLE_EQ(json.find("spec_decode_acceptance_length")->as_double(), 3);
  EXPECT_DOUBLE_EQ(json.find("request_goodput")->as_double(), 0.25);
  EXPECT_EQ(detail_json(three_results()).find("errors")->as_array()[2].as_string(), "HTTP 503");
}

TEST(LoadReportTest, NoResultsAreZero) {
  const LoadReport report = summarize({}, 0, {});
  EXPECT_EQ(report.completed, 0);
  EXPECT_EQ(report.output_throughput, 0);
  EXPECT_EQ(report.ttft.median, 0);
}

// One token has no time between tokens: that is not a time of zero.
TEST(LoadReportTest, WhatWasNotMeasuredIsNoNumber) {
  const std::vector<LoadResult> results = {
      {.success = true, .prompt_len = 5, .output_len = 1, .ttft_s = 0.1, .latency_s = 0.1}};
  const ReportOptions options{.percentiles = {99}};
  const LoadReport report = summarize(results, 1, options);
  const std::string text = report_text(report, options);
  EXPECT_NE(text.find("Mean TPOT (ms):                          n/a"), std::string::npos) << text;
  EXPECT_NE(text.find("P99 ITL (ms):                            n/a"), std::string::npos) << text;
  EXPECT_NE(text.find("Mean TTFT (ms):                          100.00"), std::string::npos);
  const Json json = report_json(report, options);
  EXPECT_TRUE(json.find("mean_tpot_ms")->is_null());
  EXPECT_TRUE(json.find("p99_itl_ms")->is_null());
  EXPECT_DOUBLE_EQ(json.find("mean_e2el_ms")->as_double(), 100);
}

TEST(LoadReportTest, HitsOfThePrefixCacheAreOfTheRunOnly) {
  const auto at = [](int queries, int hits) {
    return MetricsSnapshot("vllm:prefix_cache_queries_total " + std::to_string(queries) +
                           "\nvllm:prefix_cache_hits_total " + std::to_string(hits) + "\n");
  };
  LoadReport report = summarize(three_results(), 4, {});
  EXPECT_EQ(report_text(report, {}).find("Prefix Cache"), std::string::npos);
  report.prefix_cache_hit_rate = prefix_hit_rate(at(100, 90), at(300, 140));
  EXPECT_DOUBLE_EQ(*report.prefix_cache_hit_rate, 0.25);
  EXPECT_NE(report_text(report, {}).find("Hit rate (%):                            25.00"),
            std::string::npos);
  EXPECT_DOUBLE_EQ(report_json(report, {}).find("prefix_cache_hit_rate")->as_double(), 0.25);
  EXPECT_FALSE(prefix_hit_rate(at(100, 90), at(100, 90)));
}

TEST(LoadReportTest, DraftsAreOfTheRunOnly) {
  const MetricsSnapshot before(
      "vllm:spec_decode_num_drafts_total 5\nvllm:spec_decode_num_draft_tokens_total 40\n"
      "vllm:spec_decode_num_accepted_tokens_total 9\n"
      "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"} 4\n");
  const MetricsSnapshot after(
      "vllm:spec_decode_num_drafts_total 15\nvllm:spec_decode_num_draft_tokens_total 120\n"
      "vllm:spec_decode_num_accepted_tokens_total 29\n"
      "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"} 11\n"
      "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"1\"} 3\n");
  const auto stats = draft_stats(before, after);
  ASSERT_TRUE(stats);
  EXPECT_DOUBLE_EQ(stats->acceptance_length(), 3);
  EXPECT_DOUBLE_EQ(stats->acceptance_rate(), 0.25);
  ASSERT_EQ(stats->per_position.size(), 2u);
  EXPECT_DOUBLE_EQ(stats->per_position[0], 0.7);
  EXPECT_DOUBLE_EQ(stats->per_position[1], 0.3);
  EXPECT_FALSE(draft_stats(after, after));
}

TEST(LoadReportTest, RefusesOtherGoodput) {
  for (const char* word : {"ttft", "itl:3", "ttft:-1", "ttft:3x", ""})
    EXPECT_THROW(parse_goodput({word}), Error) << word;
}

TEST(ParetoTest, FrontHoldsWhatNobodyBeats) {
  const auto front = pareto_front({{1, 9, "a"}, {2, 5, "b"}, {1.5, 4, "c"}, {3, 5, "d"}});
  ASSERT_EQ(front.size(), 2u);
  EXPECT_EQ(front[0].label, "a");
  EXPECT_EQ(front[1].label, "d");
  const std::string svg = pareto_svg({{1, 9, "<a&"}}, "x", "y");
  EXPECT_NE(svg.find("&lt;a&amp;"), std::string::npos);
}

}  // namespace
}  // namespace coppice
