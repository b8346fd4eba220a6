#include "text/detokenizer.h"

#include <utility>

#include "text/unicode.h"

namespace coppice {

std::string Detokenizer::add(std::int32_t id) {
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  std::string bytes = std::exchange(pending_, {});
  bytes += tokenizer_->token_bytes(id);
  const std::size_t complete = bytes.size() - incomplete_utf8_suffix(bytes);
  pending_ = bytes.substr(complete);
  bytes.resize(complete);
  return replace_invalid_utf8(bytes);
}

std::string Detokenizer::finish() {
  return replace_invalid_utf8(std::exchange(pending_, {}));
}

}  // namespace coppice
