// SmolLM2-135M-Instruct (make models) and twenty questions to it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/gguf.h"
#include "tests/support/source_dir.h"
#include "text/tokenizer.h"

namespace coppice::testing {

inline std::string smollm2_path() {
  return source_dir() + "/models/downloaded/SmolLM2-135M-Instruct.Q4_1.gguf";
}

inline const char* const kQuestions[] = {"What is the capital of France?",
                                         "Name three colours.",
                                         "Write a sentence about rain.",
                                         "What is 7 plus 5?",
                                         "Who wrote Hamlet?",
                                         "Explain what a compiler does.",
                                         "List the days of the week.",
                                         "What do bees make?",
                                         "Translate 'good morning' to Spanish.",
                                         "Give me a recipe for tea.",
                                         "Why is the sky blue?",
                                         "What is a prime number?",
                                         "Describe a cat in one sentence.",
                                         "How many legs does a spider have?",
                                         "Write a haiku about the sea.",
                                         "What is the largest planet?",
                                         "Define gravity.",
                                         "Write a short poem about a tree.",
                                         "What is the opposite of hot?",
                                         "Tell me a fun fact about elephants."};

// One for each question, in the model's chat format.
inline std::vector<std::vector<std::int32_t>> smollm2_prompts() {
  const GgufFile file(smollm2_path());
  const Tokenizer tokenizer =
      Tokenizer::from_gguf(read_gguf_vocabulary(file.fields()), file.file().name());
  std::vector<std::vector<std::int32_t>> prompts;
  for (const std::string question : kQuestions)
    prompts.push_back(tokenizer.encode(
        "<|im_start|>user\n" + question + "<|im_end|>\n<|im_start|>assistant\n", true));
  return prompts;
}

}  // namespace coppice::testing
