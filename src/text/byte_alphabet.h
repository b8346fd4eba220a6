// The printable alphabet in which tokenizer.json and GGUF write byte strings: every byte is one
// character (GPT-2's table: printable Latin-1 stands for itself, the rest for U+0100...).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/bpe.h"

namespace coppice {

// Nothing when `text` has a character outside of the alphabet.
std::optional<std::string> bytes_of_alphabet(std::string_view text);

// The rule "left right" with both sides in the alphabet; nothing when the sides or their joined
// bytes are not findable tokens, or the line has no single space.
std::optional<Merge> merge_of_line(std::string_view line, const TokenTable& table);
std::optional<Merge> merge_of_pair(std::string_view left, std::string_view right,
                                   const TokenTable& table);

}  // namespace coppice
