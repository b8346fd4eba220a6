// Drives one sequence through a model in tests: prompt chunks, decided rows, and trees. Its blocks
// are scattered, so that a slot mistaken for a position shows.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "cache/paged_kv_cache.h"
#include "model/model.h"

namespace coppice::testing {

// Device copies of host values that live until the driver is destroyed or clear() is called.
class DeviceScratch {
 public:
  explicit DeviceScratch(Backend& backend) : backend_(backend) {}

  Tensor ints(const std::vector<std::int32_t>& values) {
    return ints(values, static_cast<std::int64_t>(values.size()), 0);
  }
  Tensor ints(const std::vector<std::int32_t>& values, std::int64_t rows, std::int64_t cols) {
    const Buffer& buffer = add(values.size() * sizeof(std::int32_t));
    const Tensor tensor =
        cols == 0 ? buffer.tensor(DType::kI32, {rows}) : buffer.tensor(DType::kI32, {rows, cols});
    backend_.upload(tensor, values.data());
    return tensor;
  }
  Tensor make(DType dtype, std::int64_t rows, std::int64_t cols) {
    return add(static_cast<std::size_t>(rows * cols) * size_of(dtype)).tensor(dtype, {rows, cols});
  }
  // fp32 copy of a dense tensor of fp32 or bf16.
  std::vector<float> floats(const Tensor& tensor) {
    std::vector<float> values(static_cast<std::size_t>(tensor.num_elements()));
    if (tensor.dtype() == DType::kF32) {
      backend_.download(values.data(), tensor);
      return values;
    }
    std::vector<bf16> raw(values.size());
    COPPICE_CHECK(tensor.dtype() == DType::kBF16, tensor.describe());
    backend_.download(raw.data(), tensor);
    for (std::size_t i = 0; i < raw.size(); ++i) values[i] = to_float(raw[i]);
    return values;
  }
  void clear() { buffers_.clear(); }

 private:
  const Buffer& add(std::size_t num_bytes) {
    buffers_.push_back(backend_.allocate(std::max<std::size_t>(num_bytes, 4)));
    return buffers_.back();
  }
  Backend& backend_;
  std::vector<Buffer> buffers_;
};

// Rows of one step: tokens with their parents (an index into the rows before, or -1 for the last
// decided position).
struct TreeRows {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> parents;
};

struct StepResult {
  std::vector<float> logits;    // [rows, vocab_size]
  std::vector<float> features;  // [rows, num_features * hidden_size]; empty without features
};

class ModelDriver {
 public:
  ModelDriver(Backend& backend, Model& model, std::int64_t max_positions,
              std::int64_t num_features = 0)
      : backend_(backend),
        model_(model),
        num_features_(num_features),
        num_blocks_((max_positions + kBlockSize - 1) / kBlockSize + 1),
        cache_(backend, model.kv_layout(), num_blocks_),
        scratch_(backend) {
    // An odd stride visits all blocks when it shares no factor with their number.
    std::int64_t stride = 1;
    for (const std::int64_t candidate : {7, 5, 3})
      if (std::gcd(candidate, num_blocks_) == 1) stride = candidate;
    for (std::int64_t i = 0; i < num_blocks_; ++i)
      block_table_.push_back(static_cast<std::int32_t>((i * stride + 1) % num_blocks_));
  }

  std::int64_t length() const { return length_; }
  void truncate(std::int64_t length) { length_ = length; }
  PagedKvCache& cache() { return cache_; }
  const std::vector<std::int32_t>& block_table() const { return block_table_; }
  std::int32_t slot(std::int64_t position) const {
    return static_cast<std::int32_t>(block_table_[static_cast<std::size_t>(position / kBlockSize)] *
                                         kBlockSize +
                                     position % kBlockSize);
  }

  // Appends tokens in one step; every row sees the positions up to its own.
  StepResult append(std::span<const std::int32_t> tokens, Provenance provenance) {
    TreeRows rows;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      rows.tokens.push_back(tokens[i]);
      rows.parents.push_back(static_cast<std::int32_t>(i) - 1);
    }
    const bool is_prompt = provenance == Provenance::kPrompt;
    StepResult result = step(rows, provenance, is_prompt);
    length_ += static_cast<std::int64_t>(tokens.size());
    return result;
  }
  // A prompt in chunks; the logits and features of all rows.
  StepResult prefill(std::span<const std::int32_t> tokens, std::size_t chunk) {
    StepResult all;
    for (std::size_t begin = 0; begin < tokens.size(); begin += chunk) {
      const auto part = tokens.subspan(begin, std::min(chunk, tokens.size() - begin));
      const StepResult result = append(part, Provenance::kPrompt);
      all.logits.insert(all.logits.end(), result.logits.begin(), result.logits.end());
      all.features.insert(all.features.end(), result.features.begin(), result.features.end());
    }
    return all;
  }
  // Verifies rows under their tree mask. Nothing is decided: length() stays.
  StepResult verify(const TreeRows& rows) { return step(rows, Provenance::kDecided, false); }

  // One cached row of a plane, [row_size].
  std::vector<float> cached(std::int64_t layer, std::int64_t plane, std::int64_t position) {
    const Tensor& whole = cache_.plane(layer, plane);
    const Tensor flat =
        whole.reshape({whole.shape(0) * whole.shape(1), whole.shape(2)}).rows(slot(position), 1);
    return scratch_.floats(flat);
  }

 private:
  // Row i is stored at position length + i. plain: keys through the block table alone.
  StepResult step(const TreeRows& rows, Provenance provenance, bool plain) {
    const auto num_rows = static_cast<std::int64_t>(rows.tokens.size());
    std::vector<std::int32_t> positions, slots, kv_len, path_len;
    std::vector<std::vector<std::int32_t>> paths;
    std::size_t longest = 1;
    for (std::size_t i = 0; i < rows.tokens.size(); ++i) {
      const std::int32_t parent = rows.parents[i];
      paths.push_back(parent < 0 ? std::vector<std::int32_t>{}
                                 : paths[static_cast<std::size_t>(parent)]);
      slots.push_back(slot(length_ + static_cast<std::int64_t>(i)));
      paths.back().push_back(slots.back());
      positions.push_back(
          static_cast<std::int32_t>(length_ + static_cast<std::int64_t>(paths.back().size()) - 1));
      kv_len.push_back(plain ? positions.back() + 1 : static_cast<std::int32_t>(length_));
      path_len.push_back(plain ? 0 : static_cast<std::int32_t>(paths.back().size()));
      longest = std::max(longest, paths.back().size());
    }
    std::vector<std::int32_t> path;
    for (std::vector<std::int32_t>& row : paths) {
      row.resize(longest, -1);
      path.insert(path.end(), row.begin(), row.end());
    }
    const ForwardBatch batch{
        .token_ids = scratch_.ints(rows.tokens),
        .positions = scratch_.ints(positions),
        .slots = scratch_.ints(slots),
        .attention = {.seq_of_row = scratch_.ints(std::vector<std::int32_t>(rows.tokens.size(), 0)),
                      .kv_len = scratch_.ints(kv_len),
                      .path_len = scratch_.ints(path_len),
                      .path = scratch_.ints(path, num_rows, static_cast<std::int64_t>(longest)),
                      .block_tables = scratch_.ints(block_table_, 1,
                                                    static_cast<std::int64_t>(block_table_.size())),
                      .max_kv_len = length_ + num_rows,
                      .provenance = provenance},
        .output_rows = {}};
    return run(batch, num_rows);
  }

  StepResult run(const ForwardBatch& batch, std::int64_t num_rows) {
    const Tensor logits = scratch_.make(DType::kF32, num_rows, model_.config().vocab_size);
    Tensor features;
    if (num_features_ > 0)
      features = scratch_.make(backend_.activation_dtype(), num_rows,
                               num_features_ * model_.config().hidden_size);
    model_.forward(batch, cache_, logits, features);
    StepResult result{.logits = scratch_.floats(logits), .features = {}};
    if (num_features_ > 0) result.features = scratch_.floats(features);
    scratch_.clear();
    return result;
  }

  Backend& backend_;
  Model& model_;
  std::int64_t num_features_;
  std::int64_t num_blocks_;
  PagedKvCache cache_;
  DeviceScratch scratch_;
  std::vector<std::int32_t> block_table_;
  std::int64_t length_ = 0;
};

// Index of the largest value; the lowest on ties.
inline std::int32_t argmax(std::span<const float> values) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < values.size(); ++i)
    if (values[i] > values[best]) best = i;
  return static_cast<std::int32_t>(best);
}

// max |a - b| / max |b|.
inline double relative_error(std::span<const float> a, std::span<const float> b) {
  COPPICE_CHECK_EQ(a.size(), b.size());
  double difference = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(a[i] == a[i])) return INFINITY;
    difference = std::max(difference, std::abs(double{a[i]} - double{b[i]}));
    largest = std::max(largest, std::abs(double{b[i]}));
  }
  return largest > 0 ? difference / largest : difference;
}

}  // namespace coppice::testing
