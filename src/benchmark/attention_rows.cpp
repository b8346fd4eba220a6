#include "benchmark/attention_rows.h"

#include <numeric>

namespace coppice {
namespace {

// As the engine's: blocks have no path, and the width tells kernels that there is none.
std::int64_t max_path_of(AttentionRows::Kind kind) {
  return kind == AttentionRows::Kind::kBlock ? 1 : 16;
}

}  // namespace

std::int64_t AttentionRows::kv_len(std::int64_t row) const {
  switch (kind) {
    case Kind::kTree:
      return context;
    case Kind::kBlock:
      return context + count;
    case Kind::kPrompt:
      return context + row % count + 1;
  }
  return 0;
}

double AttentionRows::mean_keys() const {
  return static_cast<double>(kv_len(0) + kv_len(count - 1)) / 2;
}

std::vector<std::int32_t> AttentionRows::path(std::int64_t row) const {
  std::vector<std::int32_t> path;
  if (kind != Kind::kTree) return path;
  for (std::int64_t node = row % count;; node = (node - 1) / 2) {
    path.insert(path.begin(), static_cast<std::int32_t>(first_slot(row) + context + node));
    if (node == 0) return path;
  }
}

std::vector<std::int64_t> AttentionRows::slots(std::int64_t row) const {
  std::vector<std::int64_t> slots(static_cast<std::size_t>(kv_len(row)));
  std::iota(slots.begin(), slots.end(), first_slot(row));
  for (const std::int32_t slot : path(row)) slots.push_back(slot);
  return slots;
}

AttentionMetadata AttentionRows::metadata(BenchSide& side) const {
  const std::int64_t max_path = max_path_of(kind);
  std::vector<std::int32_t> seqs, kv_lens, path_lens, paths;
  for (std::int64_t row = 0; row < total(); ++row) {
    const auto own = path(row);
    seqs.push_back(static_cast<std::int32_t>(row / count));
    kv_lens.push_back(static_cast<std::int32_t>(kv_len(row)));
    path_lens.push_back(static_cast<std::int32_t>(own.size()));
    paths.insert(paths.end(), own.begin(), own.end());
    paths.resize(static_cast<std::size_t>((row + 1) * max_path), -1);
  }
  std::vector<std::int32_t> tables(static_cast<std::size_t>(batch * blocks()));
  std::iota(tables.begin(), tables.end(), 0);
  return {.seq_of_row = side.ints({total()}, seqs),
          .kv_len = side.ints({total()}, kv_lens),
          .path_len = side.ints({total()}, path_lens),
          .path = side.ints({total(), max_path}, paths),
          .block_tables = side.ints({batch, blocks()}, tables),
          .max_kv_len = context + count,
          .provenance = kind == Kind::kPrompt ? Provenance::kPrompt : Provenance::kDecided};
}

}  // namespace coppice
