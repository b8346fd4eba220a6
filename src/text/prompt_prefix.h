// What a tokenizer puts in front of a raw prompt: BOS for Llama's family, nothing for most others.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "io/gguf.h"
#include "io/json_field.h"
#include "text/tokenizer.h"

namespace coppice {

// Of a Hugging Face folder: what the post_processor of tokenizer.json (`root`) adds, unless the
// class in tokenizer_config.json (`config`, which may be absent) is one of Llama's that decides by
// add_bos_token. Throws kUnsupported for what would add tokens behind a prompt.
std::vector<std::int32_t> read_prompt_prefix(const JsonField& root,
                                             const std::filesystem::path& config,
                                             const std::vector<AddedToken>& added);

// Of a GGUF file, as llama.cpp: tokenizer.ggml.add_bos_token, else `otherwise`, which goes by the
// pre-tokenizer.
std::vector<std::int32_t> read_prompt_prefix(const GgufVocabulary& vocabulary, bool otherwise,
                                             const std::string& source);

}  // namespace coppice
