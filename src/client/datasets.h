// Prompts to measure with: vLLM's data sets "random", "sharegpt" and "custom".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace coppice {

struct BenchPrompt {
  std::string text;
  std::int64_t num_tokens = 0;    // of the text, without a chat template
  std::int64_t output_len = 128;  // tokens to ask for
};

struct DatasetOptions {
  std::string name = "random";
  std::string path;  // sharegpt: JSON list of conversations; custom: JSONL with "prompt"
  std::int64_t num_prompts = 1000;
  std::uint64_t seed = 0;
  std::int64_t random_input_len = 1024;
  std::int64_t random_output_len = 128;
  std::int64_t random_prefix_len = 0;    // tokens that all prompts begin with
  double random_range_ratio = 0;         // lengths vary by so much of themselves, 0 <= r < 1
  std::int64_t sharegpt_output_len = 0;  // 0: as long as the answer in the data
  std::int64_t custom_output_len = 256;  // -1: "output_tokens" of the line
  bool disable_shuffle = false;
};

// Exactly num_prompts of them; a data set that has fewer is repeated. The same options give the
// same prompts. Throws Error naming the flag, or the file and line.
std::vector<BenchPrompt> load_dataset(const DatasetOptions& options, const Tokenizer& tokenizer);

}  // namespace coppice
