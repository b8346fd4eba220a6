#include "tests/planted/support/planted_kernels.h"

#include <cuda_bf16.h>

#include <cstdio>
#include <cstdlib>

namespace coppice::testing {
namespace {

constexpr int kMaxPerLane = 16;  // latent columns of one lane

__device__ float warp_sum(float x) {
  for (int offset = 16; offset > 0; offset /= 2)
    x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, offset));
  return x;
}

__global__ void linear_kernel(PlantedLinear a) {
  const int row = static_cast<int>(blockIdx.y), lane = static_cast<int>(threadIdx.x) % 32;
  const int output = static_cast<int>(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32);
  if (output >= a.outputs) return;
  const auto* x = static_cast<const __nv_bfloat16*>(a.x) + row * a.x_stride;
  const auto* last = static_cast<const __nv_bfloat16*>(a.x) + (a.num_rows - 1) * a.x_stride;
  const auto* w = static_cast<const __nv_bfloat16*>(a.weight) + std::int64_t{output} * a.inputs;
  float total = 0.0f;
  for (int i = 0; i < a.segments; ++i) {
    const int s = a.reversed ? a.segments - 1 - i : i;
    const int begin = a.inputs * s / a.segments, end = a.inputs * (s + 1) / a.segments;
    float sum = 0.0f;
    for (int k = begin + lane; k < end; k += 32)
      sum = __fmaf_rn(__bfloat162float(x[k]), __bfloat162float(w[k]), sum);
    total = __fadd_rn(total, warp_sum(sum));
  }
  if (a.leak) total = __fmaf_rn(0.0f, __bfloat162float(last[0]), total);
  if (lane != 0) return;
  if (a.out_is_f32)
    static_cast<float*>(a.out)[row * a.out_stride + output] = total;
  else
    static_cast<__nv_bfloat16*>(a.out)[row * a.out_stride + output] = __float2bfloat16_rn(total);
}

__global__ void norm_kernel(PlantedNorm a) {
  __shared__ float sums[1024];
  auto* x = static_cast<__nv_bfloat16*>(a.x) + blockIdx.x * a.x_stride;
  const auto* delta =
      static_cast<const __nv_bfloat16*>(a.delta) + std::int64_t{blockIdx.x} * a.size;
  auto* out = static_cast<__nv_bfloat16*>(a.out) + blockIdx.x * a.out_stride;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  float sum = 0.0f;
  for (int i = thread; i < a.size; i += threads) {
    if (a.delta != nullptr)
      x[i] = __float2bfloat16_rn(__fadd_rn(__bfloat162float(x[i]), __bfloat162float(delta[i])));
    const float value = __bfloat162float(x[i]);
    sum = __fmaf_rn(value, value, sum);
  }
  sums[thread] = sum;
  __syncthreads();
  for (int half = threads / 2; half > 0; half /= 2) {
    if (thread < half) sums[thread] = __fadd_rn(sums[thread], sums[thread + half]);
    __syncthreads();
  }
  const float scale = rsqrtf(__fadd_rn(sums[0] / static_cast<float>(a.size), a.eps));
  for (int i = thread; i < a.size; i += threads)
    out[i] = __float2bfloat16_rn(__fmul_rn(__fmul_rn(__bfloat162float(x[i]), scale), a.weight[i]));
}

// Running softmax of a row and head: maximum, sum, and this lane's columns of the weighted sum.
struct Running {
  float max = -INFINITY, sum = 0.0f;
  float columns[kMaxPerLane] = {};

  __device__ void add(float other_max, float other_sum, const float* other, int count) {
    const float top = fmaxf(max, other_max);
    const float mine = __expf(max - top), theirs = __expf(other_max - top);
    sum = __fmaf_rn(sum, mine, __fmul_rn(other_sum, theirs));
    for (int i = 0; i < count; ++i)
      columns[i] = __fmaf_rn(columns[i], mine, __fmul_rn(other[i], theirs));
    max = top;
  }
};

__global__ void mla_kernel(PlantedMla a) {
  const int row = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int lane = static_cast<int>(threadIdx.x), width = a.rank + a.rope_dim;
  const int per_lane = a.rank / 32, seq = a.seq_of_row[row];
  if (seq < 0) return;
  const int before = a.kv_len[row], keys = before + a.path_len[row];
  const auto* q_lat = static_cast<const __nv_bfloat16*>(a.q_lat) +
                      (std::int64_t{row} * a.num_heads + head) * a.rank;
  const auto* q_pe = static_cast<const __nv_bfloat16*>(a.q_pe) + row * a.q_pe_stride +
                     std::int64_t{head} * a.rope_dim;
  Running total;
  for (int split = 0; split < a.splits; ++split) {
    Running part;
    for (int j = keys * split / a.splits; j < keys * (split + 1) / a.splits; ++j) {
      const int slot =
          j >= before ? a.path[std::int64_t{row} * a.max_path + j - before]
                      : a.block_tables[std::int64_t{seq} * a.max_blocks + j / 64] * 64 + j % 64;
      const auto* key = static_cast<const __nv_bfloat16*>(a.cache) + std::int64_t{slot} * width;
      float dot = 0.0f;
      for (int i = lane; i < width; i += 32) {
        const float q = __bfloat162float(i < a.rank ? q_lat[i] : q_pe[i - a.rank]);
        dot = __fmaf_rn(q, __bfloat162float(key[i]), dot);
      }
      float values[kMaxPerLane];
      for (int i = 0; i < per_lane; ++i) values[i] = __bfloat162float(key[lane + 32 * i]);
      part.add(__fmul_rn(warp_sum(dot), a.scale), 1.0f, values, per_lane);
    }
    if (part.sum > 0.0f) total.add(part.max, part.sum, part.columns, per_lane);
  }
  auto* out =
      static_cast<__nv_bfloat16*>(a.out) + (std::int64_t{row} * a.num_heads + head) * a.rank;
  for (int i = 0; i < per_lane; ++i)
    out[lane + 32 * i] = __float2bfloat16_rn(total.columns[i] / total.sum);
}

__global__ void poison_kernel(__nv_bfloat16* x, std::int64_t stride, int size,
                              const std::int32_t* token_ids) {
  if (token_ids[blockIdx.x] >= 0) return;
  for (int i = static_cast<int>(threadIdx.x); i < size; i += static_cast<int>(blockDim.x))
    x[blockIdx.x * stride + i] = __float2bfloat16_rn(NAN);
}

void finish() {
  const cudaError_t status = cudaDeviceSynchronize();
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "planted kernel: %s\n", cudaGetErrorString(status));
  std::abort();
}

}  // namespace

void planted_linear(const PlantedLinear& args) {
  const dim3 grid(static_cast<unsigned>(args.outputs + 7) / 8,
                  static_cast<unsigned>(args.num_rows));
  linear_kernel<<<grid, 256>>>(args);
  finish();
}

void planted_norm(const PlantedNorm& args) {
  norm_kernel<<<static_cast<unsigned>(args.num_rows), static_cast<unsigned>(args.threads)>>>(args);
  finish();
}

void planted_mla(const PlantedMla& args) {
  const dim3 grid(static_cast<unsigned>(args.num_rows), static_cast<unsigned>(args.num_heads));
  mla_kernel<<<grid, 32>>>(args);
  finish();
}

void poison_rows(void* x, std::int64_t stride, int num_rows, int size,
                 const std::int32_t* token_ids) {
  poison_kernel<<<static_cast<unsigned>(num_rows), 128>>>(static_cast<__nv_bfloat16*>(x), stride,
                                                          size, token_ids);
  finish();
}

}  // namespace coppice::testing
