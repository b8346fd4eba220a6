// Text to token ids and back, for byte-level BPE vocabularies: tiktoken.model (Kimi),
// tokenizer.json (Hugging Face) and GGUF. A Tokenizer is immutable and thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/gguf.h"
#include "text/bpe.h"
#include "text/marked_text.h"
#include "text/pretokenizer.h"

namespace coppice {

// A token that BPE never makes: a role mark, a tool-call mark, padding ...
struct AddedToken {
  std::int32_t id;
  std::string text;
  bool special;  // left out by decode(skip_special = true); Kimi's tool marks and <think> are not
};

class Tokenizer {
 public:
  struct Parts {
    Bpe bpe;
    PreTokenizer pre_tokenizer;
    bool normalize_nfc = false;
    bool kimi_chunking = false;  // cut long texts as Kimi's wrapper does
    std::vector<AddedToken> added_tokens;
    std::vector<std::int32_t> prompt_prefix = {};  // BOS where the model wants one
  };
  explicit Tokenizer(Parts parts);

  // tiktoken.model with tokenizer_config.json beside it: Kimi's format, the listed specials and
  // 256 special slots behind the base ranks, unnamed ones called <|reserved_token_ID|>.
  static Tokenizer from_tiktoken(const std::string& model_path, const std::string& config_path);
  // Hugging Face tokenizer.json. Throws kUnsupported naming the part that is not byte-level BPE
  // with a known pattern. tokenizer_config.json beside it may decide about BOS.
  static Tokenizer from_tokenizer_json(const std::string& path);
  // `source` names the file in errors.
  static Tokenizer from_gguf(const GgufVocabulary& vocabulary, const std::string& source);
  // The tokenizer of a model folder: tiktoken.model, else tokenizer.json.
  static Tokenizer from_folder(const std::string& folder);

  // Ids of a text. Texts of added tokens stay plain text unless allow_special: then each becomes
  // its id, longest first. No id is put in front. Throws kInvalidArgument from 1 GiB on.
  std::vector<std::int32_t> encode(std::string_view text, bool allow_special = false) const;
  // What stands in front of a raw prompt (never of a chat, whose template writes it); mostly
  // nothing, BOS for Llama's family.
  std::span<const std::int32_t> prompt_prefix() const { return parts_.prompt_prefix; }
  // prompt_prefix and encode(text, allow_special).
  std::vector<std::int32_t> encode_prompt(std::string_view text, bool allow_special = false) const;
  // As encode(text, true), but added tokens are recognised only where the template wrote every
  // byte of them.
  std::vector<std::int32_t> encode(const MarkedText& text) const;

  // Joined bytes of the ids; may end inside a character. An id outside of the vocabulary adds
  // nothing. skip_special leaves out added tokens marked special.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const;
  // Bytes of one id, empty outside of the vocabulary. Valid as long as the Tokenizer.
  std::string_view token_bytes(std::int32_t id) const { return parts_.bpe.table().bytes(id); }

  // Highest id + 1. A model's vocab_size may be larger (padding rows).
  std::int32_t vocab_size() const { return parts_.bpe.table().size(); }
  // The added token that is written so, if there is one.
  std::optional<std::int32_t> added_token_id(std::string_view text) const;
  // All added tokens, sorted by text.
  std::span<const AddedToken> added_tokens() const { return parts_.added_tokens; }
  bool is_added(std::int32_t id) const;
  bool is_special(std::int32_t id) const;

 private:
  using Ranges = std::span<const MarkedText::Range>;
  // Ids of text[chunk], with added tokens recognised inside the ranges of `trusted` only.
  void encode_chunk(std::string_view text, Piece chunk, Ranges trusted,
                    std::vector<std::int32_t>& ids) const;
  std::vector<std::int32_t> encode_ranges(std::string_view text, Ranges trusted) const;
  const AddedToken* longest_added_at(std::string_view text) const;
  void encode_plain(std::string_view text, std::vector<std::int32_t>& ids) const;

  Parts parts_;
  bool starts_added_[256] = {};         // by first byte of an added token
  std::vector<std::uint8_t> id_flags_;  // [vocab_size] bit 0: added, bit 1: special
};

}  // namespace coppice
