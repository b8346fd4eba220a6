#include "text/tokenizer.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "text/normalizer.h"

namespace coppice {
namespace {

constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;
constexpr std::uint8_t kAdded = 1, kSpecialFlag = 2;

}  // namespace

Tokenizer::Tokenizer(Parts parts) : parts_(std::move(parts)) {
  auto& added = parts_.added_tokens;
  std::sort(added.begin(), added.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.text < b.text; });
  id_flags_.assign(static_cast<std::size_t>(vocab_size()), 0);
  for (const AddedToken& token : added) {
    COPPICE_CHECK(token.id >= 0 && token.id < vocab_size() && !token.text.empty(), token.id);
    starts_added_[static_cast<unsigned char>(token.text[0])] = true;
    id_flags_[static_cast<std::size_t>(token.id)] =
        static_cast<std::uint8_t>(kAdded | (token.special ? kSpecialFlag : 0));
  }
  for (const std::int32_t id : parts_.prompt_prefix)
    COPPICE_CHECK(id >= 0 && id < vocab_size(), id);
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool allow_special) const {
  const MarkedText::Range all{0, text.size()};
  return encode_ranges(text, allow_special ? Ranges(&all, 1) : Ranges());
}

std::vector<std::int32_t> Tokenizer::encode_prompt(std::string_view text,
                                                   bool allow_special) const {
  std::vector<std::int32_t> ids = encode(text, allow_special);
  ids.insert(ids.begin(), parts_.prompt_prefix.begin(), parts_.prompt_prefix.end());
  return ids;
}

std::vector<std::int32_t> Tokenizer::encode(const MarkedText& text) const {
  return encode_ranges(text.text(), text.trusted());
}

std::vector<std::int32_t> Tokenizer::encode_ranges(std::string_view text, Ranges trusted) const {
  if (text.size() >= kMaxTextBytes) {
    throw Error(ErrorKind::kInvalidArgument,
                "text of " + std::to_string(text.size()) + " bytes: the limit is 1 GiB");
  }
  std::vector<std::int32_t> ids;
  if (parts_.kimi_chunking) {
    for (const Piece& chunk : kimi_chunks(text)) encode_chunk(text, chunk, trusted, ids);
  } else {
    encode_chunk(text, {0, static_cast<std::uint32_t>(text.size())}, trusted, ids);
  }
  return ids;
}

void Tokenizer::encode_chunk(std::string_view text, Piece chunk, Ranges trusted,
                             std::vector<std::int32_t>& ids) const {
  std::size_t plain_begin = chunk.begin;
  const auto plain_until = [&](std::size_t end) {
    encode_plain(text.substr(plain_begin, end - plain_begin), ids);
  };
  for (const MarkedText::Range& range : trusted) {
    const std::size_t end = std::min<std::size_t>(range.end, chunk.end);
    for (std::size_t i = std::max<std::size_t>(range.begin, chunk.begin); i < end;) {
      const AddedToken* token = starts_added_[static_cast<unsigned char>(text[i])]
                                    ? longest_added_at(text.substr(i, end - i))
                                    : nullptr;
      if (token == nullptr) {
        ++i;
        continue;
      }
      plain_until(i);
      ids.push_back(token->id);
      i += token->text.size();
      plain_begin = i;
    }
  }
  plain_until(chunk.end);
}

void Tokenizer::encode_plain(std::string_view text, std::vector<std::int32_t>& ids) const {
  if (text.empty()) return;
  std::string normalized;
  if (parts_.normalize_nfc) {
    normalized = coppice::normalize_nfc(text);
    text = normalized;
  }
  Bpe::Scratch scratch;
  for (const Piece& piece : pre_tokenize(parts_.pre_tokenizer, text)) {
    parts_.bpe.encode_piece(text.substr(piece.begin, piece.end - piece.begin), scratch, ids);
  }
}

// Narrows the sorted list character by character; a token that ends here is the longest so far.
const AddedToken* Tokenizer::longest_added_at(std::string_view text) const {
  const AddedToken* best = nullptr;
  auto first = parts_.added_tokens.begin(), last = parts_.added_tokens.end();
  for (std::size_t depth = 0; first != last; ++depth) {
    if (first->text.size() == depth) best = &*first++;
    if (depth == text.size()) break;
    const auto byte = [depth](const AddedToken& t) {
      return static_cast<unsigned char>(t.text[depth]);
    };
    const auto wanted = static_cast<unsigned char>(text[depth]);
    first =
        std::partition_point(first, last, [&](const AddedToken& t) { return byte(t) < wanted; });
    last =
        std::partition_point(first, last, [&](const AddedToken& t) { return byte(t) == wanted; });
  }
  return best;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string text;
  for (const std::int32_t id : ids) {
    if (!skip_special || !is_special(id)) text += token_bytes(id);
  }
  return text;
}

std::optional<std::int32_t> Tokenizer::added_token_id(std::string_view text) const {
  const auto& added = parts_.added_tokens;
  const auto found = std::lower_bound(
      added.begin(), added.end(), text,
      [](const AddedToken& token, std::string_view wanted) { return token.text < wanted; });
  if (found == added.end() || found->text != text) return std::nullopt;
  return found->id;
}

bool Tokenizer::is_added(std::int32_t id) const {
  return id >= 0 && id < vocab_size() && (id_flags_[static_cast<std::size_t>(id)] & kAdded) != 0;
}

bool Tokenizer::is_special(std::int32_t id) const {
  return id >= 0 && id < vocab_size() &&
         (id_flags_[static_cast<std::size_t>(id)] & kSpecialFlag) != 0;
}

}  // namespace coppice
