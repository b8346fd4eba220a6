#include "text/normalizer.h"

#include <algorithm>
#include <span>
#include <unordered_map>
#include <vector>

#include "text/unicode.h"
#include "text/unicode_data.h"

namespace coppice {
namespace {

// Hangul syllables are composed by arithmetic (Unicode chapter 3.12).
constexpr char32_t kSyllable = 0xac00, kLead = 0x1100, kVowel = 0x1161, kTrail = 0x11a7;
constexpr char32_t kVowels = 21, kTrails = 28, kSyllables = 19 * kVowels * kTrails;

struct Tables {
  std::unordered_map<char32_t, std::span<const std::uint32_t>> decompositions;
  std::unordered_map<std::uint64_t, char32_t> compositions;
  std::unordered_map<char32_t, std::uint8_t> orders;
};

std::uint64_t pair_key(char32_t first, char32_t second) {
  return static_cast<std::uint64_t>(first) << 32 | second;
}

Tables build_tables() {
  Tables tables;
  const auto flat = unicode_data::decompositions();
  for (std::size_t i = 0; i < flat.size();) {
    const std::size_t length = flat[i] >> 24;
    tables.decompositions.emplace(flat[i] & 0xffffff, flat.subspan(i + 1, length));
    i += length + 1;
  }
  for (const auto& c : unicode_data::compositions()) {
    tables.compositions.emplace(pair_key(c.first, c.second), c.composed);
  }
  for (const auto& run : unicode_data::combining_runs()) {
    for (char32_t c = run.first; c <= run.last; ++c) tables.orders.emplace(c, run.order);
  }
  return tables;
}

const Tables& tables() {
  static const Tables instance = build_tables();
  return instance;
}

struct Ordered {
  char32_t code_point;
  std::uint8_t order;  // 0: a starter, never moved
};

void push(std::vector<Ordered>& out, char32_t c) {
  const auto found = tables().orders.find(c);
  out.push_back({c, found == tables().orders.end() ? std::uint8_t{0} : found->second});
}

void push_decomposed(std::vector<Ordered>& out, char32_t c) {
  if (c >= kSyllable && c < kSyllable + kSyllables) {
    const char32_t s = c - kSyllable;
    out.push_back({kLead + s / (kVowels * kTrails), 0});
    out.push_back({kVowel + s % (kVowels * kTrails) / kTrails, 0});
    if (s % kTrails != 0) out.push_back({kTrail + s % kTrails, 0});
    return;
  }
  const auto found = tables().decompositions.find(c);
  if (found == tables().decompositions.end()) return push(out, c);
  for (const std::uint32_t part : found->second) push(out, part);
}

void sort_marks(std::vector<Ordered>& text) {
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i;
    while (end < text.size() && text[end].order != 0) ++end;
    std::stable_sort(text.begin() + static_cast<std::ptrdiff_t>(i),
                     text.begin() + static_cast<std::ptrdiff_t>(end),
                     [](const Ordered& a, const Ordered& b) { return a.order < b.order; });
    i = end + 1;
  }
}

// The character that first + second compose to, or 0.
char32_t composed(char32_t first, char32_t second) {
  if (first >= kLead && first < kLead + 19 && second >= kVowel && second < kVowel + kVowels) {
    return kSyllable + ((first - kLead) * kVowels + (second - kVowel)) * kTrails;
  }
  if (first >= kSyllable && first < kSyllable + kSyllables && (first - kSyllable) % kTrails == 0 &&
      second > kTrail && second < kTrail + kTrails) {
    return first + (second - kTrail);
  }
  const auto found = tables().compositions.find(pair_key(first, second));
  return found == tables().compositions.end() ? 0 : found->second;
}

// A character joins the last starter unless one of equal or higher order stands between them.
std::string compose(const std::vector<Ordered>& text) {
  std::vector<Ordered> out;
  out.reserve(text.size());
  std::ptrdiff_t starter = -1;
  for (const Ordered& c : text) {
    const bool adjacent = starter == static_cast<std::ptrdiff_t>(out.size()) - 1;
    if (starter >= 0 && (adjacent || (out.back().order != 0 && out.back().order < c.order))) {
      Ordered& first = out[static_cast<std::size_t>(starter)];
      if (const char32_t joined = composed(first.code_point, c.code_point); joined != 0) {
        first.code_point = joined;
        continue;
      }
    }
    if (c.order == 0) starter = static_cast<std::ptrdiff_t>(out.size());
    out.push_back(c);
  }
  std::string utf8;
  for (const Ordered& c : out) append_utf8(utf8, c.code_point);
  return utf8;
}

}  // namespace

std::string normalize_nfc(std::string_view text) {
  // Nothing below U+0300 combines or is moved.
  const auto low = [](char c) { return static_cast<unsigned char>(c) < 0xcc; };
  if (std::all_of(text.begin(), text.end(), low)) return std::string(text);
  std::vector<Ordered> decomposed;
  decomposed.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const DecodedChar c = decode_utf8(text, i);
    push_decomposed(decomposed, c.code_point);
    i += c.length;
  }
  sort_marks(decomposed);
  return compose(decomposed);
}

}  // namespace coppice
