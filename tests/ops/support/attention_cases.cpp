// rope_and_write_kv and attention, MLA and GQA, over three sequences with scattered blocks.
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "tests/ops/support/staging.h"

namespace coppice::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::int64_t kNumBlocks = 16, kTableBlocks = 4, kMaxPath = 6;
// Positions of each sequence that hold a key; everything behind is NaN.
constexpr std::array<std::int64_t, 3> kLengths = {200, 64, 5};
constexpr std::int32_t kTables[3][kTableBlocks] = {{7, 2, 11, 4}, {0, 9, 3, 5}, {8, 1, 10, 6}};
constexpr std::int64_t kPathBlock = 12;  // undecided keys lie in the blocks from here on
// Long sequences read these blocks, full of keys, again and again.
constexpr std::array<std::int32_t, 8> kFullBlocks = {7, 12, 2, 15, 11, 0, 14, 13};

struct RowKeys {
  std::int32_t sequence, kv_len, path_len;
};

// What the rows of a step are: of all kinds, one after the other; all of one sequence, as a block,
// a tree, a prompt or a block whose rows see more or less of it and now and then have a path of one
// key; or each of a sequence of its own.
enum class RowKind { kMixed, kBlock, kTree, kPrompt, kRagged, kSingle };

std::int64_t path_width(RowKind kind) {
  return kind == RowKind::kBlock || kind == RowKind::kRagged ? 1 : kMaxPath;
}

// Prompt-like rows (no path) and verify-like rows (a path), short and long.
RowKeys keys_of(std::int64_t id, std::int64_t long_context, RowKind kind = RowKind::kMixed) {
  if (kind == RowKind::kSingle)
    return {static_cast<std::int32_t>(id % 3),
            static_cast<std::int32_t>(id % 4 == 0 ? long_context : 1 + id * 29 % long_context),
            static_cast<std::int32_t>(id % (kMaxPath + 1))};
  if (kind == RowKind::kRagged)
    return {0, static_cast<std::int32_t>(long_context - id % 7),
            static_cast<std::int32_t>(id % 3 == 1 ? 1 : 0)};
  if (kind != RowKind::kMixed) {
    const bool prompt = kind == RowKind::kPrompt;
    return {0, static_cast<std::int32_t>(prompt ? 1 + id * 29 % long_context : long_context),
            static_cast<std::int32_t>(kind == RowKind::kTree ? 1 + id % kMaxPath : 0)};
  }
  const auto sequence = static_cast<std::int32_t>(id % 3);
  const std::int64_t length =
      long_context > 0 ? long_context : kLengths[static_cast<std::size_t>(sequence)];
  const std::int64_t kv_len = id % 4 == 0 ? length : id * 29 % (length + 1);
  const std::int64_t path_len = kv_len == 0 ? 1 + id % kMaxPath : id % (kMaxPath + 1);
  return {sequence, static_cast<std::int32_t>(kv_len), static_cast<std::int32_t>(path_len)};
}

bool holds_key(std::int64_t slot) {
  const std::int64_t block = slot / kBlockSize;
  if (block >= kPathBlock) return true;
  for (std::size_t sequence = 0; sequence < kLengths.size(); ++sequence)
    for (std::int64_t i = 0; i < kTableBlocks; ++i)
      if (kTables[sequence][i] == block)
        return i * kBlockSize + slot % kBlockSize < kLengths[sequence];
  return false;
}

Tensor cache(Staging& s, std::uint32_t stream, std::int64_t row_size) {
  static std::map<std::pair<std::uint32_t, std::int64_t>, std::vector<float>> planes;
  std::vector<float>& values = planes[{stream, row_size}];
  if (values.empty())
    for (std::int64_t slot = 0; slot < kNumBlocks * kBlockSize; ++slot)
      for (std::int64_t i = 0; i < row_size; ++i)
        values.push_back(holds_key(slot) ? noise(stream, slot, i) : kNan);
  return s.kv({kNumBlocks, kBlockSize, row_size}, values);
}

// positions: of each row's last key, or `hidden` keys before it. Prompt rows have no path.
// long_context: of every sequence, in place of kLengths.
AttentionMetadata metadata(Staging& s, const std::vector<std::int64_t>& rows, Tensor& positions,
                           std::int32_t hidden = 0, Provenance provenance = Provenance::kDecided,
                           std::int64_t long_context = 0, RowKind kind = RowKind::kMixed) {
  const auto count = static_cast<std::int64_t>(rows.size());
  std::vector<std::int32_t> sequence, kv_len, path_len, path, position, tables;
  for (const std::int64_t id : rows) {
    RowKeys keys = id == kPadding ? RowKeys{-1, -99, -99} : keys_of(id, long_context, kind);
    if (id != kPadding && provenance == Provenance::kPrompt)
      keys = {keys.sequence, std::max(keys.kv_len, 1), 0};
    const bool alone = kind == RowKind::kSingle && id != kPadding;
    sequence.push_back(alone ? static_cast<std::int32_t>(sequence.size()) : keys.sequence);
    kv_len.push_back(keys.kv_len);
    path_len.push_back(keys.path_len);
    position.push_back(std::max(keys.kv_len + keys.path_len - 1 - hidden, 0));
    for (std::int64_t i = 0; i < path_width(kind); ++i)
      path.push_back(i < keys.path_len ? static_cast<std::int32_t>(kPathBlock * kBlockSize +
                                                                   (id * 31 + i * 17) % 256)
                                       : -5);
  }
  const std::int64_t table_blocks =
      long_context > 0 ? (long_context + kBlockSize - 1) / kBlockSize : kTableBlocks;
  const std::int64_t num_tables = kind == RowKind::kSingle ? count : path_width(kind) == 1 ? 1 : 3;
  for (std::int64_t i = 0; i < num_tables; ++i) {
    std::int64_t table = i;
    if (kind == RowKind::kSingle) {  // a padded row's is read by nobody
      const std::int64_t id = rows[static_cast<std::size_t>(i)];
      table = id == kPadding ? 0 : id % 3;
    }
    for (std::int64_t block = 0; block < table_blocks; ++block)
      tables.push_back(
          long_context > 0
              ? kFullBlocks[static_cast<std::size_t>(table + block) % kFullBlocks.size()]
              : kTables[table][block]);
  }
  positions = s.ints({count}, position);
  return {.seq_of_row = s.ints({count}, sequence),
          .kv_len = s.ints({count}, kv_len),
          .path_len = s.ints({count}, path_len),
          .path = s.ints({count, path_width(kind)}, path),
          .block_tables = s.ints({num_tables, table_blocks}, tables),
          .max_kv_len = std::max(long_context, kLengths[0]) + kMaxPath,
          .provenance = provenance};
}

struct MlaSize {
  std::int64_t heads, rank, rope;
};

RowResults run_mla_attention(Backend& backend, const std::vector<std::int64_t>& rows, MlaSize size,
                             Provenance provenance) {
  Staging s(backend);
  Tensor positions;
  const AttentionMetadata meta = metadata(s, rows, positions, 0, provenance);
  const Tensor out = s.act_out(static_cast<std::int64_t>(rows.size()), {size.heads, size.rank});
  backend.plan_mla_attention({.metadata = &meta,
                              .num_heads = size.heads,
                              .kv_lora_rank = size.rank,
                              .qk_rope_head_dim = size.rope});
  backend.mla_attention({.q_lat = s.act_rows(1, rows, {size.heads, size.rank}),
                         .q_pe = s.act_rows(2, rows, {size.heads, size.rope}),
                         .cache = cache(s, 3, size.rank + size.rope),
                         .metadata = &meta,
                         .scale = 0.16f,
                         .out = out});
  // A padded row comes out as zeros.
  const std::vector<float> values = s.read(out);
  for (std::size_t i = 0; i < values.size(); ++i)
    if (rows[i / static_cast<std::size_t>(size.heads * size.rank)] == kPadding)
      COPPICE_CHECK_EQ(values[i], 0.0f);
  RowResults results;
  s.collect(out, rows, results);
  return results;
}

struct GqaSize {
  std::int64_t heads, kv_heads, dim, window;
  bool causal = false;
  std::int64_t long_context = 0;
  RowKind kind = RowKind::kMixed;
};

RowResults run_gqa_attention(Backend& backend, const std::vector<std::int64_t>& rows,
                             GqaSize size) {
  Staging s(backend);
  Tensor positions;
  // Causal rows of a draft block lie before the block's last key.
  const AttentionMetadata meta = metadata(s, rows, positions, size.causal ? 5 : 0,
                                          Provenance::kDecided, size.long_context, size.kind);
  const Tensor out = s.act_out(static_cast<std::int64_t>(rows.size()), {size.heads, size.dim});
  backend.gqa_attention({.q = s.act_rows(1, rows, {size.heads, size.dim}, 2),
                         .k_cache = cache(s, 3, size.kv_heads * size.dim),
                         .v_cache = cache(s, 4, size.kv_heads * size.dim),
                         .metadata = &meta,
                         .positions = positions,
                         .sliding_window = size.window,
                         .causal = size.causal,
                         .scale = 1 / std::sqrt(static_cast<float>(size.dim)),
                         .out = out});
  // A padded row comes out as zeros.
  const std::vector<float> values = s.read(out);
  for (std::size_t i = 0; i < values.size(); ++i)
    if (rows[i / static_cast<std::size_t>(size.heads * size.dim)] == kPadding)
      COPPICE_CHECK_EQ(values[i], 0.0f);
  RowResults results;
  s.collect(out, rows, results);
  return results;
}

constexpr std::int64_t kMaxPositions = 300;

Tensor cos_sin(Staging& s, std::int64_t dim) {
  static std::map<std::int64_t, std::vector<float>> tables;
  std::vector<float>& values = tables[dim];
  if (!values.empty()) return s.f32({kMaxPositions, dim}, values);
  for (std::int64_t p = 0; p < kMaxPositions; ++p)
    for (std::int64_t i = 0; i < dim; ++i) {
      const double frequency =
          std::pow(10000.0, -2.0 * static_cast<double>(i % (dim / 2)) / static_cast<double>(dim));
      const double angle = static_cast<double>(p) * frequency;
      values.push_back(static_cast<float>(i < dim / 2 ? std::cos(angle) : std::sin(angle)));
    }
  return s.f32({kMaxPositions, dim}, values);
}

// Row id writes slot id * 3; every ninth row writes nothing (a live row with slot -1).
std::vector<std::int32_t> slots_of(const std::vector<std::int64_t>& rows) {
  std::vector<std::int32_t> slots;
  for (const std::int64_t id : rows)
    slots.push_back(static_cast<std::int32_t>(id == kPadding || id % 9 == 4 ? -1 : id * 3));
  return slots;
}
std::vector<std::int32_t> positions_of(const std::vector<std::int64_t>& rows) {
  std::vector<std::int32_t> positions;
  for (const std::int64_t id : rows)
    positions.push_back(
        static_cast<std::int32_t>(id == kPadding ? -12345 : id * 13 % kMaxPositions));
  return positions;
}

// The cache row each row wrote (zeros where it wrote none); nothing else may have changed.
void collect_cache(Staging& s, const Tensor& plane, const std::vector<std::int64_t>& rows,
                   RowResults& results) {
  const auto size = static_cast<std::size_t>(plane.shape(2));
  const std::vector<float> values = s.read(plane);
  const std::vector<std::int32_t> slots = slots_of(rows);
  std::vector<bool> written(values.size() / size, false);
  results.resize(rows.size());
  for (std::size_t row = 0; row < rows.size(); ++row) {
    if (rows[row] == kPadding) continue;
    if (slots[row] < 0) {
      results[row].insert(results[row].end(), size, 0.0f);
      continue;
    }
    const auto slot = static_cast<std::size_t>(slots[row]);
    written[slot] = true;
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(slot * size);
    results[row].insert(results[row].end(), begin, begin + static_cast<std::ptrdiff_t>(size));
  }
  for (std::size_t i = 0; i < values.size(); ++i)
    COPPICE_CHECK(written[i / size] || values[i] == 0, "slot ", i / size, " was written");
}

Tensor empty_cache(Staging& s, std::int64_t size) {
  return s.kv({kNumBlocks, kBlockSize, size},
              std::vector<float>(static_cast<std::size_t>(kNumBlocks * kBlockSize * size), 0.0f));
}

// A copy in an output buffer, so that an in-place op is guarded too.
Tensor copy_of(Staging& s, Backend& backend, const Tensor& source,
               std::initializer_list<std::int64_t> inner) {
  const Tensor copy = s.act_out(source.shape(0), inner);
  std::vector<std::int32_t> identity;
  for (std::int64_t i = 0; i < source.shape(0); ++i)
    identity.push_back(static_cast<std::int32_t>(i));
  backend.gather_rows({.src = source, .rows = s.ints({source.shape(0)}, identity), .out = copy});
  return copy;
}

RowResults run_mla_rope(Backend& backend, const std::vector<std::int64_t>& rows, MlaSize size) {
  Staging s(backend);
  const auto count = static_cast<std::int64_t>(rows.size());
  const Tensor q_pe =
      copy_of(s, backend, s.act_rows(1, rows, {size.heads, size.rope}), {size.heads, size.rope});
  const Tensor plane = empty_cache(s, size.rank + size.rope);
  std::vector<float> norm;
  for (std::int64_t i = 0; i < size.rank; ++i) norm.push_back(1 + 0.5f * noise(5, 0, i));
  backend.mla_rope_and_write_kv({.q_pe = q_pe,
                                 .kv_a = s.act_rows(2, rows, {size.rank + size.rope}),
                                 .kv_norm = s.f32({size.rank}, norm),
                                 .eps = 1e-5f,
                                 .cos_sin = cos_sin(s, size.rope),
                                 .positions = s.ints({count}, positions_of(rows)),
                                 .slots = s.ints({count}, slots_of(rows)),
                                 .cache = plane});
  RowResults results;
  s.collect(q_pe, rows, results);
  collect_cache(s, plane, rows, results);
  return results;
}

struct MlaQueriesSize {
  std::int64_t heads, q_rank, rank, nope, rope;
};

RowResults run_mla_queries(Backend& backend, const std::vector<std::int64_t>& rows,
                           MlaQueriesSize size, Provenance provenance) {
  Staging s(backend);
  const auto count = static_cast<std::int64_t>(rows.size());
  const auto linear = [&](std::int64_t outputs, std::int64_t inputs, std::uint32_t stream) {
    const HostMatrix part = random_matrix(WeightFormat::kBF16, outputs, inputs, stream).view();
    return backend.load_linear({&part, 1});
  };
  const auto norm = [&](std::int64_t width, std::uint32_t stream) {
    std::vector<float> values;
    for (std::int64_t i = 0; i < width; ++i) values.push_back(1 + 0.5f * noise(stream, 0, i));
    return s.f32({width}, values);
  };
  const LinearWeight q_b = linear(size.heads * (size.nope + size.rope), size.q_rank, 30);
  const LinearWeight k_absorbed = linear(size.heads * size.rank, size.nope, 31);
  const MlaQueriesArgs args = {.qkv_a = s.act_rows(2, rows, {size.q_rank + size.rank + size.rope}),
                               .q_norm = norm(size.q_rank, 5),
                               .kv_norm = norm(size.rank, 6),
                               .eps = 1e-5f,
                               .q_b = &q_b,
                               .k_absorbed = &k_absorbed,
                               .cos_sin = cos_sin(s, size.rope),
                               .positions = s.ints({count}, positions_of(rows)),
                               .slots = s.ints({count}, slots_of(rows)),
                               .cache = empty_cache(s, size.rank + size.rope),
                               .provenance = provenance,
                               .c_q = s.act_out(count, {size.q_rank}),
                               .q = s.act_out(count, {size.heads * (size.nope + size.rope)}),
                               .q_lat = s.act_out(count, {size.heads, size.rank})};
  backend.mla_queries(args);
  RowResults results;
  s.collect(args.q_lat, rows, results);
  s.collect(copy_of(s, backend, args.q_pe(), {size.heads, size.rope}), rows, results);
  collect_cache(s, args.cache, rows, results);
  return results;
}

struct RopeCase {
  bool norms, interleaved, with_q;
  std::int64_t head_dim = 64;  // of gqa_rope_and_write_kv
};

RowResults run_gqa_rope(Backend& backend, const std::vector<std::int64_t>& rows, RopeCase which) {
  constexpr std::int64_t kHeads = 6, kKvHeads = 2;
  const std::int64_t dim = which.head_dim;
  Staging s(backend);
  const auto count = static_cast<std::int64_t>(rows.size());
  const Tensor q = copy_of(s, backend, s.act_rows(1, rows, {kHeads, dim}), {kHeads, dim});
  const Tensor k_plane = empty_cache(s, kKvHeads * dim), v_plane = empty_cache(s, kKvHeads * dim);
  std::vector<float> norm;
  for (std::int64_t i = 0; i < dim; ++i) norm.push_back(1 + 0.5f * noise(5, 0, i));
  backend.gqa_rope_and_write_kv({.q = which.with_q ? q : Tensor(),
                                 .k = s.act_rows(2, rows, {kKvHeads, dim}),
                                 .v = s.act_rows(3, rows, {kKvHeads, dim}),
                                 .q_norm = which.norms ? s.f32({dim}, norm) : Tensor(),
                                 .k_norm = which.norms ? s.f32({dim}, norm) : Tensor(),
                                 .eps = 1e-6f,
                                 .interleaved = which.interleaved,
                                 .cos_sin = cos_sin(s, dim),
                                 .positions = s.ints({count}, positions_of(rows)),
                                 .slots = s.ints({count}, slots_of(rows)),
                                 .k_cache = k_plane,
                                 .v_cache = v_plane});
  RowResults results;
  s.collect(q, rows, results);
  collect_cache(s, k_plane, rows, results);
  collect_cache(s, v_plane, rows, results);
  return results;
}

}  // namespace

void add_attention_cases(std::vector<OpCase>& cases) {
  using Rows = std::vector<std::int64_t>;
  const auto add = [&](std::string op, std::string name, float fast, auto run) {
    cases.push_back({std::move(op), std::move(name), fast, 2e-2f, run});
  };
  const auto mla = [&](std::string name, MlaSize size) {
    add("mla_attention", name, 2e-5f, [size](Backend& b, const Rows& r) {
      return run_mla_attention(b, r, size, Provenance::kDecided);
    });
    add("mla_attention", name + " prompt", 2e-5f, [size](Backend& b, const Rows& r) {
      return run_mla_attention(b, r, size, Provenance::kPrompt);
    });
    add("mla_rope_and_write_kv", name, 2e-6f,
        [size](Backend& b, const Rows& r) { return run_mla_rope(b, r, size); });
  };
  mla("tiny-k2", {8, 128, 32});
  mla("K2 rank", {2, 512, 64});
  mla("small", {3, 20, 12});
  const auto queries = [&](std::string name, MlaQueriesSize size, Provenance provenance) {
    add("mla_queries", std::move(name), 2e-5f, [size, provenance](Backend& b, const Rows& r) {
      return run_mla_queries(b, r, size, provenance);
    });
  };
  queries("tiny-k2", {8, 192, 128, 64, 32}, Provenance::kDecided);
  queries("K2 two heads", {2, 1536, 512, 128, 64}, Provenance::kDecided);
  queries("K2 three heads", {3, 1536, 512, 128, 64}, Provenance::kDecided);
  queries("K2 eight heads", {8, 1536, 512, 128, 64}, Provenance::kDecided);
  queries("K2 two heads, prompt", {2, 1536, 512, 128, 64}, Provenance::kPrompt);
  const auto gqa = [&](std::string name, GqaSize size) {
    add("gqa_attention", std::move(name), 2e-5f,
        [size](Backend& b, const Rows& r) { return run_gqa_attention(b, r, size); });
  };
  gqa("9 over 3", {9, 3, 64, 0});
  gqa("drafter", {8, 4, 64, 0});
  gqa("window 70", {4, 1, 128, 70});
  gqa("causal", {8, 4, 64, 0, true});
  gqa("causal window 70", {8, 4, 64, 70, true});
  // Longer than what one block of a GPU takes: partial results, merged.
  gqa("long", {4, 2, 64, 0, false, 1100});
  gqa("long causal window 700", {4, 1, 128, 700, true, 1100});
  // Groups of rows that share keys, of several tiles.
  gqa("block of a K2 rank", {8, 1, 128, 0, false, 1100, RowKind::kBlock});
  gqa("tree of 16 heads", {16, 1, 64, 0, false, 573, RowKind::kTree});
  gqa("tree, window 300", {8, 2, 128, 300, false, 640, RowKind::kTree});
  gqa("prompt of one sequence", {4, 2, 64, 0, true, 700, RowKind::kPrompt});
  // Few rows of a sequence, with the keys of the table alone and with others.
  gqa("ragged block", {8, 1, 128, 0, false, 1100, RowKind::kRagged});
  gqa("ragged block, causal window 300", {32, 8, 64, 300, true, 640, RowKind::kRagged});
  gqa("ragged block, a head each", {2, 2, 64, 0, false, 520, RowKind::kRagged});
  // Rows that are alone in their sequences, in as many chunks as one block or several take.
  gqa("single rows", {8, 4, 128, 0, false, 1100, RowKind::kSingle});
  gqa("single rows of 16 heads, window 300", {16, 1, 64, 300, false, 640, RowKind::kSingle});
  gqa("single rows, causal window 70", {9, 3, 64, 70, true, 200, RowKind::kSingle});
  gqa("head of 80", {4, 4, 80, 0});
  gqa("head of 24", {4, 2, 24, 0});
  const auto rope = [&](std::string name, RopeCase which) {
    add("gqa_rope_and_write_kv", std::move(name), 2e-6f,
        [which](Backend& b, const Rows& r) { return run_gqa_rope(b, r, which); });
  };
  rope("half-split", {false, false, true});
  rope("interleaved", {false, true, true});
  rope("with norms", {true, false, true});
  rope("keys only", {true, false, false});
  rope("head of 128", {true, false, true, 128});
}

}  // namespace coppice::testing
