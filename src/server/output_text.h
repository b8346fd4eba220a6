// The tokens of one choice as text, while they come: characters completed, stop strings found, the
// rest held back. Not thread-safe.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "io/json.h"
#include "sampling/stop_strings.h"
#include "text/detokenizer.h"
#include "text/output_marks.h"

namespace coppice {

struct OutputTextOptions {
  std::vector<std::string> stop;
  std::vector<std::int64_t> stop_token_ids;  // of the request: named in stop_reason
  std::int64_t min_tokens = 0;               // stop strings are not looked for before
  bool include_stop = false;                 // the stop string or token stays in the text
  bool skip_special_tokens = true;
};

// What one engine step added to a choice.
struct OutputStep {
  std::vector<OutputPiece> pieces;  // text that is certain, control tokens apart
  std::vector<std::int32_t> token_ids;
  std::vector<TokenLogprob> logprobs;              // one a token if asked for
  std::vector<TokenLogprob> prompt_logprobs = {};  // with the first tokens if asked for
  std::optional<std::int64_t> keep;  // a stop string ended the text after so many tokens
  EndReason end_reason = EndReason::kNone;
  Json stop_reason;  // the stop string, the stop token's id, or null
};

class OutputText {
 public:
  OutputText(const Tokenizer& tokenizer, OutputTextOptions options);

  OutputStep add(const RequestOutput& output);
  std::int64_t num_tokens() const { return num_tokens_; }

 private:
  void add_token(std::int32_t id, bool shown, OutputStep& step);
  void add_piece(OutputPiece piece, OutputStep& step);
  // Gives out the first num_bytes of what is held back.
  void release(std::size_t num_bytes, OutputStep& step);
  void finish(OutputStep& step);

  const Tokenizer* tokenizer_;
  OutputTextOptions options_;
  Detokenizer detokenizer_;
  StopStrings stop_;
  std::deque<OutputPiece> held_;  // pieces not given out yet, oldest first
  std::size_t taken_ = 0;         // bytes of held_.front() that were given out or passed over
  std::int64_t num_tokens_ = 0;
};

}  // namespace coppice
