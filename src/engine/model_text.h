// The text side of a model: its tokenizer, wherever its files keep it.
#pragma once

#include <string>

#include "text/tokenizer.h"

namespace coppice {

// `path`: a model folder (tiktoken.model or tokenizer.json) or a GGUF file. Throws Error naming the
// file.
Tokenizer load_tokenizer(const std::string& path);

}  // namespace coppice
