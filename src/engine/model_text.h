// The text side of a model: tokenizer and chat template, wherever its files keep them.
#pragma once

#include <string>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace coppice {

// `path`: a model folder (tiktoken.model or tokenizer.json) or a GGUF file. Throws Error naming the
// file.
Tokenizer load_tokenizer(const std::string& path);

// The same places' chat template. Throws Error(kNotFound) when the model brings none.
ChatTemplate load_chat_template(const std::string& path);

}  // namespace coppice
