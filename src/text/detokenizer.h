// Token ids to text, one at a time, for streaming: what is given out is always valid UTF-8 and is
// never taken back. One Detokenizer per sequence; not thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace coppice {

class Detokenizer {
 public:
  // The tokenizer must outlive the Detokenizer.
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  // Takes one id and returns the characters it completes. A character whose bytes are spread over
  // several tokens is held back; bytes that cannot become one come out as U+FFFD.
  std::string add(std::int32_t id);
  // What is still held back, as U+FFFD; call once at the end.
  std::string finish();
  bool has_pending() const { return !pending_.empty(); }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string pending_;  // at most 3 bytes: the start of a character
};

}  // namespace coppice
