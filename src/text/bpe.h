// Byte-pair encoding of one piece, over a vocabulary of byte strings.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace coppice {

// Token bytes by id and ids by token bytes. Immutable once filled; reads are thread-safe.
class TokenTable {
 public:
  // Ids must be added in ascending order from 0; an id that spells nothing is added as "".
  // With findable = false the id decodes but find() never returns it.
  void add(std::string_view bytes, bool findable);
  void build_index();
  std::int32_t size() const { return static_cast<std::int32_t>(offsets_.size()) - 1; }
  // Bytes of an id; empty for an id outside the table.
  std::string_view bytes(std::int32_t id) const;
  // Lowest findable id with these bytes, or -1.
  std::int32_t find(std::string_view bytes) const;

 private:
  struct Slot {
    std::uint32_t hash;
    std::int32_t id = -1;
  };
  std::string blob_;
  std::vector<std::uint32_t> offsets_{0};  // [size + 1]
  std::vector<bool> findable_;             // [size]
  std::vector<Slot> slots_;                // open addressing, a power of two
  std::size_t longest_ = 0;
};

// An explicit merge rule: two tokens become one; a lower rank goes first.
struct Merge {
  std::int32_t left, right, result;
};

class Bpe {
 public:
  // tiktoken rule: any two neighbours whose joined bytes are a token may merge, the lowest id
  // first. A piece that is a token is that token.
  explicit Bpe(TokenTable table);
  // tokenizer.json and GGUF rule: only listed merges, in list order. whole_piece_first takes a
  // piece that is a token at once ("ignore_merges").
  Bpe(TokenTable table, std::span<const Merge> merges, bool whole_piece_first);

  const TokenTable& table() const { return table_; }

  // Working memory of encode_piece, reusable between calls of one thread.
  struct Scratch;

  // Appends the ids of `piece`. Equal to merging, again and again, the pair of lowest rank,
  // leftmost first; O(n log n). A byte that is no token is left out, as the references do.
  void encode_piece(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const;

 private:
  struct Rule {
    std::int32_t rank = -1;  // -1: no rule
    std::int32_t result = -1;
  };
  struct PairSlot {
    std::uint64_t pair = ~std::uint64_t{0};
    Rule rule;
  };
  Rule rule_of(std::string_view piece, const Scratch& scratch, std::int32_t left) const;
  void push_rule(std::string_view piece, Scratch& scratch, std::int32_t left) const;
  void add_merge(const Merge& merge, std::int32_t rank);

  TokenTable table_;
  std::int32_t byte_ids_[256];
  std::vector<PairSlot> pairs_;  // open addressing; empty under the tiktoken rule
  bool explicit_merges_;
  bool whole_piece_first_;
};

struct Bpe::Scratch {
  struct Symbol {
    std::int32_t id;
    std::int32_t next, previous;  // indices, -1 at the ends
    std::uint32_t begin, end;     // byte range; begin == end marks a merged-away symbol
  };
  struct Candidate {
    std::int32_t rank, left, result;
    std::uint32_t end;  // end of the right symbol when the candidate was made
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

}  // namespace coppice
