#include "text/pretokenizer.h"

#include "text/unicode.h"

namespace coppice {
namespace {

using Index = std::size_t;

constexpr std::uint8_t kHeadLetter = kUpper | kOtherLetter | kMark;  // Kimi: {Lu Lt Lm Lo M}
constexpr std::uint8_t kTailLetter = kLower | kOtherLetter | kMark;  // Kimi: {Ll Lm Lo M}

bool is_newline(char32_t c) {
  return c == U'\r' || c == U'\n';
}

// A window [begin, end) of a text; no alternative looks outside of it.
struct Window {
  const Characters& text;
  Index end;

  bool has(Index i, std::uint8_t any) const { return i < end && (text.classes[i] & any) != 0; }
  bool is(Index i, char32_t c) const { return i < end && text.code_points[i] == c; }
  bool newline(Index i) const { return i < end && is_newline(text.code_points[i]); }
  // [^\s\p{L}\p{N}]
  bool symbol(Index i) const {
    return i < end && (text.classes[i] & (kSpace | kLetter | kNumber)) == 0;
  }
  // [^\r\n\p{L}\p{N}]
  bool word_prefix(Index i) const {
    return i < end && (text.classes[i] & (kLetter | kNumber)) == 0 && !newline(i);
  }
  bool not_han(Index i, std::uint8_t any) const {
    return has(i, any) && (text.classes[i] & kHan) == 0;
  }
  Index skip(Index i, std::uint8_t any) const {
    while (has(i, any)) ++i;
    return i;
  }
  Index skip_not_han(Index i, std::uint8_t any) const {
    while (not_han(i, any)) ++i;
    return i;
  }
};

// 's 't 're 've 'm 'll 'd at i: the index behind it, or i. Ignoring case follows Unicode's simple
// folding, by which U+017F (long s) is an s.
Index contraction(const Window& w, Index i, bool ignore_case) {
  if (!w.is(i, U'\'') || i + 1 >= w.end) return i;
  const auto letter = [&](Index at) -> char32_t {
    if (at >= w.end) return 0;
    const char32_t c = w.text.code_points[at];
    if (!ignore_case) return c;
    if (c == U'\u017F') return U's';
    return c >= U'A' && c <= U'Z' ? c + 32 : c;
  };
  const char32_t first = letter(i + 1), second = letter(i + 2);
  if (first == U's' || first == U't' || first == U'm' || first == U'd') return i + 2;
  const bool two = (first == U'r' && second == U'e') || (first == U'v' && second == U'e') ||
                   (first == U'l' && second == U'l');
  return two ? i + 3 : i;
}

// ` ?[^\s\p{L}\p{N}]+` and, if asked, `[\r\n]*`: the end, or i.
Index symbols(const Window& w, Index i, bool newlines) {
  Index j = w.is(i, U' ') ? i + 1 : i;
  if (!w.symbol(j)) return i;
  while (w.symbol(j)) ++j;
  while (newlines && w.newline(j)) ++j;
  return j;
}

// `\s*[\r\n]+` if asked, then `\s+(?!\S)`, then `\s+`. text[i] must be white space.
Index white_space(const Window& w, Index i, bool newlines) {
  const Index run_end = w.skip(i, kSpace);
  if (newlines) {
    for (Index j = run_end; j > i; --j) {
      if (w.newline(j - 1)) return j;
    }
  }
  if (run_end == w.end || run_end - i == 1) return run_end;
  return run_end - 1;
}

Index digits(const Window& w, Index i, Index most) {
  Index j = i;
  while (j - i < most && w.has(j, kNumber)) ++j;
  return j;
}

// Head* Tail+ from i: the end, or i when there is no match. Head* first takes all it can; if no
// Tail character follows, it gives back characters until the one given back is also a Tail one.
Index heads_then_tails(const Window& w, Index i) {
  const Index heads_end = w.skip_not_han(i, kHeadLetter);
  if (w.not_han(heads_end, kTailLetter)) return w.skip_not_han(heads_end, kTailLetter);
  for (Index j = heads_end; j > i; --j) {
    if (w.not_han(j - 1, kTailLetter)) return j;
  }
  return i;
}

// Head+ Tail* from i: the end, or i.
Index heads_maybe_tails(const Window& w, Index i) {
  const Index heads_end = w.skip_not_han(i, kHeadLetter);
  return heads_end == i ? i : w.skip_not_han(heads_end, kTailLetter);
}

Index kimi_piece(const Window& w, Index i) {
  if (w.has(i, kHan)) return w.skip(i, kHan);
  for (const auto& body : {heads_then_tails, heads_maybe_tails}) {
    if (w.word_prefix(i)) {
      const Index end = body(w, i + 1);
      if (end > i + 1) return contraction(w, end, true);
    }
    const Index end = body(w, i);
    if (end > i) return contraction(w, end, true);
  }
  if (w.has(i, kNumber)) return digits(w, i, 3);
  if (const Index end = symbols(w, i, true); end > i) return end;
  return white_space(w, i, true);
}

Index cl100k_piece(const Window& w, Index i, Index most_digits) {
  if (const Index end = contraction(w, i, true); end > i) return end;
  const Index word = w.word_prefix(i) ? i + 1 : i;
  if (w.has(word, kLetter)) return w.skip(word, kLetter);
  if (w.has(i, kNumber)) return digits(w, i, most_digits);
  if (const Index end = symbols(w, i, true); end > i) return end;
  return white_space(w, i, true);
}

Index gpt2_piece(const Window& w, Index i) {
  if (const Index end = contraction(w, i, false); end > i) return end;
  const Index word = w.is(i, U' ') ? i + 1 : i;
  if (w.has(word, kLetter)) return w.skip(word, kLetter);
  if (w.has(word, kNumber)) return w.skip(word, kNumber);
  if (const Index end = symbols(w, i, false); end > i) return end;
  return white_space(w, i, false);
}

Index next_piece(PreTokenizer kind, const Window& w, Index i) {
  switch (kind) {
    case PreTokenizer::kKimi:
      return kimi_piece(w, i);
    case PreTokenizer::kLlama3:
      return cl100k_piece(w, i, 3);
    case PreTokenizer::kQwen2:
      return cl100k_piece(w, i, 1);
    case PreTokenizer::kGpt2:
    case PreTokenizer::kSmolLm:
      return gpt2_piece(w, i);
  }
  return w.end;
}

// SmolLM2 isolates number characters first; the pattern then sees only what lies between them.
Index window_end(PreTokenizer kind, const Characters& text, Index i) {
  if (kind != PreTokenizer::kSmolLm) return text.size();
  if (text.classes[i] & kDigitsStep) return i + 1;
  Index end = i;
  while (end < text.size() && (text.classes[end] & kDigitsStep) == 0) ++end;
  return end;
}

}  // namespace

std::vector<Piece> pre_tokenize(PreTokenizer kind, std::string_view text) {
  const Characters characters = to_characters(text);
  std::vector<Piece> pieces;
  pieces.reserve(characters.size() / 4 + 1);
  for (Index begin = 0; begin < characters.size();) {
    const Window window{characters, window_end(kind, characters, begin)};
    while (begin < window.end) {
      const Index end = next_piece(kind, window, begin);
      pieces.push_back({characters.offsets[begin], characters.offsets[end]});
      begin = end;
    }
  }
  return pieces;
}

std::vector<Piece> kimi_chunks(std::string_view text, std::uint32_t chunk_chars,
                               std::uint32_t run_chars) {
  std::vector<Piece> chunks;
  Piece current{0, 0};
  std::uint32_t chars = 0, run = 0;
  bool space = false;
  for (std::uint32_t i = 0; i < text.size();) {
    const DecodedChar c = decode_utf8(text, i);
    const bool is_space = is_python_space(c.code_point);
    if (chars == chunk_chars) {
      chunks.push_back({current.begin, i});
      current.begin = i;
      chars = run = 0;
    }
    // A chunk's first character opens its run with the count at zero, as the wrapper does.
    if (chars == 0) space = is_space;
    run = is_space == space ? run + 1 : 1;
    space = is_space;
    if (run > run_chars) {
      chunks.push_back({current.begin, i});
      current.begin = i;
      run = 1;
    }
    ++chars;
    i += c.length;
  }
  if (current.begin < text.size()) {
    chunks.push_back({current.begin, static_cast<std::uint32_t>(text.size())});
  }
  return chunks;
}

}  // namespace coppice
