#include "model/weight_reader.h"

#include "backend/dequantize.h"

namespace coppice {

HostMatrix shard_matrix(const HostMatrix& whole, Split split, const ParallelConfig& parallel,
                        const std::string& name, HostStorage& storage) {
  if (split == Split::kNone || parallel.size == 1) return whole;
  const bool by_rows = split == Split::kRows;
  const Shard shard =
      shard_of(parallel, by_rows ? whole.rows : whole.cols,
               by_rows ? row_multiple(whole.format) : column_multiple(whole.format), name.c_str());
  return by_rows ? slice_rows(whole, shard.begin, shard.count)
                 : slice_cols(whole, shard.begin, shard.count, storage);
}

HostMatrix WeightReader::matrix(const WeightSpec& spec, Split split) {
  const HostMatrix whole = source_.matrix(spec);
  count(num_bytes(whole));
  return shard_matrix(whole, split, parallel_, spec.name, storage_);
}

std::optional<RepackedExperts> WeightReader::repacked_experts(const std::string& prefix) {
  const std::optional<RepackedExperts> experts = source_.repacked_experts(prefix);
  if (experts)
    count(static_cast<std::size_t>(parallel_.size) * (experts->w13.size() + experts->w2.size()));
  return experts;
}

LinearWeight WeightReader::linear(std::initializer_list<WeightSpec> specs, Split split) {
  std::vector<HostMatrix> parts;
  for (const WeightSpec& spec : specs) parts.push_back(matrix(spec, split));
  return linear(parts);
}

LinearWeight WeightReader::linear(const std::vector<HostMatrix>& parts) {
  return backend_.load_linear(parts);
}

Tensor WeightReader::vector(const WeightSpec& spec) {
  const std::vector<float> values = source_.vector(spec);
  const Buffer& buffer = buffers_.emplace_back(backend_.allocate(values.size() * sizeof(float)));
  const Tensor tensor = buffer.tensor(DType::kF32, {spec.rows});
  backend_.upload(tensor, values.data());
  count(values.size() * sizeof(float));
  return tensor;
}

Tensor WeightReader::embedding(const WeightSpec& spec) {
  const HostMatrix table = source_.matrix(spec);
  count(num_bytes(table));
  const bool is_bf16 = table.format == WeightFormat::kBF16;
  const DType dtype = is_bf16 ? DType::kBF16 : DType::kF32;
  const std::size_t size = static_cast<std::size_t>(spec.rows * spec.cols) * size_of(dtype);
  const Buffer& buffer = buffers_.emplace_back(backend_.allocate(size));
  const Tensor tensor = buffer.tensor(dtype, {spec.rows, spec.cols});
  if (is_bf16) {
    backend_.upload(tensor, table.data);
    return tensor;
  }
  constexpr std::int64_t kRowsAtOnce = 1024;
  std::vector<float> rows(static_cast<std::size_t>(kRowsAtOnce * spec.cols));
  for (std::int64_t begin = 0; begin < spec.rows; begin += kRowsAtOnce) {
    const std::int64_t end = std::min(begin + kRowsAtOnce, spec.rows);
    for (std::int64_t row = begin; row < end; ++row)
      dequantize_row(table, row, rows.data() + (row - begin) * spec.cols);
    backend_.upload(tensor.rows(begin, end - begin), rows.data());
  }
  return tensor;
}

void WeightReader::release() {
  storage_.clear();
  source_.release();
}

void WeightReader::count(std::size_t num_bytes) {
  done_bytes_ = std::min(done_bytes_ + static_cast<std::int64_t>(num_bytes), total_bytes_);
  if (progress_) progress_(done_bytes_, total_bytes_);
}

}  // namespace coppice
