// Pre-tokenisation: cutting a text into the pieces that BPE may not merge across. Hand-written
// scanners for the published patterns; each takes, at every position, what the pattern's
// alternatives would take in their order, backtracking included.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace coppice {

enum class PreTokenizer : std::uint8_t {
  kKimi,    // tiktoken.model of Kimi-K2.x
  kLlama3,  // Llama 3; cl100k in its first form
  kQwen2,   // Qwen2, Qwen2.5, Qwen3: as Llama 3 with single digits
  kGpt2,    // byte-level default
  kSmolLm,  // every number character alone, then GPT-2
};

// Half-open byte range of a piece.
struct Piece {
  std::uint32_t begin, end;
};

// The pieces of `text` in order; together they are the text. Malformed UTF-8 is taken byte by byte
// as symbols. text.size() < 2^32.
std::vector<Piece> pre_tokenize(PreTokenizer kind, std::string_view text);

// The cuts that Kimi's published wrapper makes before pre-tokenisation: chunks of `chunk_chars`
// characters, and inside them runs of white space or of anything else longer than `run_chars`.
std::vector<Piece> kimi_chunks(std::string_view text, std::uint32_t chunk_chars = 400'000,
                               std::uint32_t run_chars = 25'000);

}  // namespace coppice
