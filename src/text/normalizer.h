// Unicode normalisation form C, as the tokenizers that ask for it (Qwen) apply it before
// pre-tokenisation. Data of the references' own Unicode version. Thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace coppice {

// Malformed bytes are kept and normalise with nothing.
std::string normalize_nfc(std::string_view text);

}  // namespace coppice
