#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace coppice {
namespace {

std::uint32_t hash_bytes(std::string_view bytes) {
  const std::uint64_t h = std::hash<std::string_view>{}(bytes);
  return static_cast<std::uint32_t>(h ^ h >> 32);
}

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

std::size_t pair_slot(std::uint64_t pair, std::size_t slots) {
  return static_cast<std::size_t>((pair * 0x9e3779b97f4a7c15u) >> 32) & (slots - 1);
}

// Orders a max-heap so that its top is the lowest rank, leftmost.
bool later(const Bpe::Scratch::Candidate& a, const Bpe::Scratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
}

}  // namespace

void TokenTable::add(std::string_view bytes, bool findable) {
  blob_.append(bytes);
  offsets_.push_back(static_cast<std::uint32_t>(blob_.size()));
  findable_.push_back(findable);
  if (findable) longest_ = std::max(longest_, bytes.size());
}

void TokenTable::build_index() {
  slots_.assign(std::bit_ceil(findable_.size() * 2 + 1), Slot{});
  for (std::int32_t id = 0; id < size(); ++id) {
    const std::string_view token = bytes(id);
    if (!findable_[static_cast<std::size_t>(id)] || token.empty() || find(token) >= 0) continue;
    const std::uint32_t hash = hash_bytes(token);
    std::size_t i = hash & (slots_.size() - 1);
    while (slots_[i].id >= 0) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = {hash, id};
  }
}

std::string_view TokenTable::bytes(std::int32_t id) const {
  if (id < 0 || id >= size()) return {};
  const auto i = static_cast<std::size_t>(id);
  return std::string_view(blob_).substr(offsets_[i], offsets_[i + 1] - offsets_[i]);
}

std::int32_t TokenTable::find(std::string_view token) const {
  if (token.size() > longest_) return -1;
  const std::uint32_t hash = hash_bytes(token);
  for (std::size_t i = hash & (slots_.size() - 1); slots_[i].id >= 0;
       i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].hash == hash && bytes(slots_[i].id) == token) return slots_[i].id;
  }
  return -1;
}

Bpe::Bpe(TokenTable table) : Bpe(std::move(table), {}, true) {
  explicit_merges_ = false;
}

Bpe::Bpe(TokenTable table, std::span<const Merge> merges, bool whole_piece_first)
    : table_(std::move(table)), explicit_merges_(true), whole_piece_first_(whole_piece_first) {
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    byte_ids_[b] = table_.find(std::string_view(&byte, 1));
  }
  pairs_.assign(std::bit_ceil(merges.size() * 2 + 1), PairSlot{});
  for (std::size_t i = 0; i < merges.size(); ++i) {
    add_merge(merges[i], static_cast<std::int32_t>(i));
  }
}

// A pair listed twice keeps its later rule: the reference fills a map in list order.
void Bpe::add_merge(const Merge& merge, std::int32_t rank) {
  const std::uint64_t pair = pair_key(merge.left, merge.right);
  std::size_t i = pair_slot(pair, pairs_.size());
  while (pairs_[i].rule.rank >= 0 && pairs_[i].pair != pair) i = (i + 1) & (pairs_.size() - 1);
  pairs_[i] = {pair, {rank, merge.result}};
}

Bpe::Rule Bpe::rule_of(std::string_view piece, const Scratch& scratch, std::int32_t left) const {
  const Scratch::Symbol& a = scratch.symbols[static_cast<std::size_t>(left)];
  const Scratch::Symbol& b = scratch.symbols[static_cast<std::size_t>(a.next)];
  if (!explicit_merges_) {
    const std::int32_t id = table_.find(piece.substr(a.begin, b.end - a.begin));
    return {id, id};
  }
  const std::uint64_t pair = pair_key(a.id, b.id);
  for (std::size_t i = pair_slot(pair, pairs_.size()); pairs_[i].rule.rank >= 0;
       i = (i + 1) & (pairs_.size() - 1)) {
    if (pairs_[i].pair == pair) return pairs_[i].rule;
  }
  return {};
}

void Bpe::push_rule(std::string_view piece, Scratch& scratch, std::int32_t left) const {
  const Scratch::Symbol& a = scratch.symbols[static_cast<std::size_t>(left)];
  if (a.next < 0) return;
  const Rule rule = rule_of(piece, scratch, left);
  if (rule.rank < 0) return;
  const std::uint32_t end = scratch.symbols[static_cast<std::size_t>(a.next)].end;
  scratch.heap.push_back({rule.rank, left, rule.result, end});
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), later);
}

void Bpe::encode_piece(std::string_view piece, Scratch& scratch,
                       std::vector<std::int32_t>& ids) const {
  if (whole_piece_first_) {
    if (const std::int32_t id = table_.find(piece); id >= 0) return ids.push_back(id);
  }
  auto& symbols = scratch.symbols;
  symbols.clear();
  scratch.heap.clear();
  for (std::uint32_t i = 0; i < piece.size(); ++i) {
    const std::int32_t id = byte_ids_[static_cast<unsigned char>(piece[i])];
    if (id < 0) continue;
    const auto index = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({id, index + 1, index - 1, i, i + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
    push_rule(piece, scratch, static_cast<std::int32_t>(i));
  }
  while (!scratch.heap.empty()) {
    std::pop_heap(scratch.heap.begin(), scratch.heap.end(), later);
    const Scratch::Candidate best = scratch.heap.back();
    scratch.heap.pop_back();
    Scratch::Symbol& left = symbols[static_cast<std::size_t>(best.left)];
    // Stale when a side has grown since: boundaries only disappear, so the end tells.
    if (left.begin == left.end || left.next < 0) continue;
    Scratch::Symbol& right = symbols[static_cast<std::size_t>(left.next)];
    if (right.end != best.end) continue;
    left.id = best.result;
    left.end = right.end;
    left.next = right.next;
    right.begin = right.end;
    if (left.next >= 0) symbols[static_cast<std::size_t>(left.next)].previous = best.left;
    push_rule(piece, scratch, best.left);
    if (left.previous >= 0) push_rule(piece, scratch, left.previous);
  }
  for (std::int32_t i = 0; i >= 0; i = symbols[static_cast<std::size_t>(i)].next) {
    ids.push_back(symbols[static_cast<std::size_t>(i)].id);
  }
}

}  // namespace coppice
