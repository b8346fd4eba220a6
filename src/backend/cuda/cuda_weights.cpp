#include "backend/cuda/cuda_weights.h"

#include <vector>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/cuda_memory.h"
#include "backend/dequantize.h"
#include "base/error.h"
#include "base/half.h"
#include "kernels/moe/expert_blob.h"
#include "kernels/moe/repack_experts.h"

namespace coppice {
namespace {

constexpr std::int64_t kChunkRows = 256;  // rows dequantised at a time

void upload_dequantised(const HostMatrix& part, bf16* dst, StagedCopy& staging) {
  std::vector<float> row(static_cast<std::size_t>(part.cols));
  std::vector<bf16> chunk(static_cast<std::size_t>(kChunkRows * part.cols));
  for (std::int64_t begin = 0; begin < part.rows; begin += kChunkRows) {
    const std::int64_t count = std::min(kChunkRows, part.rows - begin);
    for (std::int64_t r = 0; r < count; ++r) {
      dequantize_row(part, begin + r, row.data());
      for (std::int64_t i = 0; i < part.cols; ++i)
        chunk[static_cast<std::size_t>(r * part.cols + i)] =
            to_bf16(row[static_cast<std::size_t>(i)]);
    }
    staging.copy(dst + begin * part.cols, chunk.data(),
                 static_cast<std::size_t>(count * part.cols) * sizeof(bf16));
  }
}

// One matrix of all experts, packed words and scales, on the device: the source of a repack.
struct StagedMatrix {
  Buffer packed;  // [experts, rows, cols / 8] i32
  Buffer scales;  // [experts, rows, cols / 32] bf16
};

StagedMatrix stage(std::span<const ExpertSource> sources, HostMatrix ExpertSource::*member,
                   StagedCopy& staging) {
  const HostMatrix& first = sources[0].*member;
  const auto packed_bytes = static_cast<std::size_t>(first.rows * first.cols / 2);
  const auto scale_bytes =
      static_cast<std::size_t>(first.rows * first.cols / kQuantGroup) * sizeof(bf16);
  StagedMatrix staged = {allocate_device(packed_bytes * sources.size(), staging.stream()),
                         allocate_device(scale_bytes * sources.size(), staging.stream())};
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const HostMatrix& matrix = sources[i].*member;
    if (matrix.format != WeightFormat::kInt4Group32)
      throw Error(ErrorKind::kUnsupported,
                  "cuda: routed experts must be INT4 group 32 (coppice quantize makes them)");
    staging.copy(static_cast<std::byte*>(staged.packed.data()) + i * packed_bytes, matrix.data,
                 packed_bytes);
    staging.copy(static_cast<std::byte*>(staged.scales.data()) + i * scale_bytes, matrix.scales,
                 scale_bytes);
  }
  return staged;
}

const std::int32_t* words(const void* data) {
  return static_cast<const std::int32_t*>(data);
}

std::int64_t blob_bytes(int rows, int inputs) {
  return kernels::expert_blob_bytes(kernels::expert_blob_shape(rows, inputs));
}

}  // namespace

std::shared_ptr<const CudaMatrix> upload_matrix(std::span<const HostMatrix> parts,
                                                StagedCopy& staging) {
  std::int64_t rows = 0;
  for (const HostMatrix& part : parts) rows += part.rows;
  const std::int64_t cols = parts[0].cols;
  auto matrix = std::make_shared<CudaMatrix>();
  matrix->data =
      allocate_device(static_cast<std::size_t>(rows * cols) * sizeof(bf16), staging.stream());
  auto* dst = static_cast<bf16*>(matrix->data.data());
  for (const HostMatrix& part : parts) {
    COPPICE_CHECK_EQ(part.cols, cols);
    if (part.format == WeightFormat::kBF16)
      staging.copy(dst, part.data, static_cast<std::size_t>(part.rows * cols) * sizeof(bf16));
    else
      upload_dequantised(part, dst, staging);
    dst += part.rows * cols;
  }
  return matrix;
}

std::shared_ptr<CudaExperts> allocate_experts(int num_experts, int hidden_size,
                                              int intermediate_size, cudaStream_t stream) {
  const auto count = static_cast<std::size_t>(num_experts);
  auto experts = std::make_shared<CudaExperts>();
  experts->w13 = allocate_device(
      count * static_cast<std::size_t>(blob_bytes(2 * intermediate_size, hidden_size)), stream);
  experts->w2 = allocate_device(
      count * static_cast<std::size_t>(blob_bytes(hidden_size, intermediate_size)), stream);
  return experts;
}

void repack_staged(const StagedExperts& staged, int first, CudaExperts& experts,
                   cudaStream_t stream) {
  const int hidden = staged.hidden_size, intermediate = staged.intermediate_size;
  cuda_check(kernels::repack_experts({.packed = words(staged.gate.packed),
                                      .scale = staged.gate.scales,
                                      .packed_up = words(staged.up.packed),
                                      .scale_up = staged.up.scales,
                                      .blob = static_cast<std::byte*>(experts.w13.data()) +
                                              first * blob_bytes(2 * intermediate, hidden),
                                      .num_experts = staged.num_experts,
                                      .rows = intermediate,
                                      .inputs = hidden},
                                     stream),
             "repack w13");
  cuda_check(kernels::repack_experts({.packed = words(staged.down.packed),
                                      .scale = staged.down.scales,
                                      .blob = static_cast<std::byte*>(experts.w2.data()) +
                                              first * blob_bytes(hidden, intermediate),
                                      .num_experts = staged.num_experts,
                                      .rows = hidden,
                                      .inputs = intermediate},
                                     stream),
             "repack w2");
}

std::shared_ptr<const CudaExperts> upload_experts(std::span<const ExpertSource> sources,
                                                  StagedCopy& staging) {
  const cudaStream_t stream = staging.stream();
  const auto num_experts = static_cast<int>(sources.size());
  const auto hidden = static_cast<int>(sources[0].gate.cols);
  const auto intermediate = static_cast<int>(sources[0].gate.rows);
  const StagedMatrix gate = stage(sources, &ExpertSource::gate, staging);
  const StagedMatrix up = stage(sources, &ExpertSource::up, staging);
  const StagedMatrix down = stage(sources, &ExpertSource::down, staging);
  auto experts = allocate_experts(num_experts, hidden, intermediate, stream);
  repack_staged({.gate = {gate.packed.data(), gate.scales.data()},
                 .up = {up.packed.data(), up.scales.data()},
                 .down = {down.packed.data(), down.scales.data()},
                 .num_experts = num_experts,
                 .hidden_size = hidden,
                 .intermediate_size = intermediate},
                0, *experts, stream);
  cuda_check(cudaStreamSynchronize(stream), "repack experts");
  return experts;
}

std::shared_ptr<const CudaExperts> upload_repacked(const RepackedExperts& repacked,
                                                   StagedCopy& staging) {
  auto experts = allocate_experts(static_cast<int>(repacked.num_experts),
                                  static_cast<int>(repacked.hidden_size),
                                  static_cast<int>(repacked.intermediate_size), staging.stream());
  COPPICE_CHECK_EQ(experts->w13.num_bytes(), repacked.w13.size());
  COPPICE_CHECK_EQ(experts->w2.num_bytes(), repacked.w2.size());
  staging.copy(experts->w13.data(), repacked.w13.data(), repacked.w13.size());
  staging.copy(experts->w2.data(), repacked.w2.data(), repacked.w2.size());
  return experts;
}

}  // namespace coppice
