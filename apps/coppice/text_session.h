// An engine with its tokenizer: what generate and chat share. Text in, text out, one request at a
// time.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "speculative_flags.h"
#include "text/tokenizer.h"

namespace coppice {

// Flags that both verbs have; names are vLLM's, with SGLang's spellings as aliases.
struct SessionFlags {
  EngineConfig engine;
  SamplingParams sampling;
  SpeculativeFlags speculative;
  bool quiet = false;

  void add_to(CLI::App& app);
  // Resolves the model path and merges the speculative flags. Throws Error naming the flag.
  void finish();
};

struct Completion {
  std::vector<std::int32_t> token_ids;
  std::string text;
  EndReason end_reason = EndReason::kNone;
  RequestStats stats;
};

class TextSession {
 public:
  // Loads with a progress bar on stderr unless the flags say quiet.
  explicit TextSession(const SessionFlags& flags);

  Engine& engine() { return *engine_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }

  // Runs one request to its end. `on_text` gets the text as it becomes certain; stop strings are
  // cut.
  Completion complete(const std::vector<std::int32_t>& prompt, const SamplingParams& sampling,
                      const std::function<void(const std::string&)>& on_text);

  // A token's text on one line, for drawing.
  std::string printable(std::int32_t token) const;

 private:
  Tokenizer tokenizer_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace coppice
