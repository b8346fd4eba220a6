// Sends streaming requests to an OpenAI-style server at given times and notes when what came back.
// Measures as vLLM's `bench serve` does: the first chunk with choices is the first token, every
// later one ends an inter-token interval (a chunk may carry several tokens).
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "client/datasets.h"
#include "client/http_client.h"
#include "io/json.h"

namespace coppice {

struct LoadOptions {
  bool chat = false;     // prompts become one user message to /v1/chat/completions
  std::string endpoint;  // empty: by `chat`
  std::string model;     // name that requests carry; empty: none
  double request_rate = std::numeric_limits<double>::infinity();  // requests/s
  double burstiness = 1;             // shape of the gamma distribution of intervals; 1: Poisson
  std::int64_t max_concurrency = 0;  // 0: no limit
  std::uint64_t seed = 0;
  bool ignore_eos = false;
  Json extra_body;  // object whose members go into every request; null: none
  std::chrono::milliseconds timeout{std::chrono::hours(6)};
};

struct LoadResult {
  bool success = false;
  std::string error;  // when not
  std::int64_t prompt_len = 0;
  std::int64_t output_len = 0;  // tokens, as the server counted them
  double start_s = 0;           // since the load began
  double ttft_s = 0;            // first chunk with choices
  double latency_s = 0;         // last chunk with choices
  std::vector<double> itl_s;    // between chunks
  std::string text;
};

// Seconds from the start to each request: cumulated gamma-distributed intervals, stretched so that
// the last comes at count / rate. All 0 at an infinite rate.
std::vector<double> arrival_times(std::int64_t count, double rate, double burstiness,
                                  std::uint64_t seed);

// One result a prompt, in order; `duration_s` is the time from the first to the last byte of all.
// `on_done` (may be empty) is told after each how many have ended.
std::vector<LoadResult> run_load(HttpClient& client, const std::vector<BenchPrompt>& prompts,
                                 const LoadOptions& options, double& duration_s,
                                 const std::function<void(std::int64_t)>& on_done = {});

}  // namespace coppice
