// How fast can one CTA per SM stream key tiles of 64 x 576 through two buffers, by way of copying?
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kernels/common/tensor_copy.cuh"

using namespace coppice::kernels;
#define CK(x)                                                             \
  do {                                                                    \
    cudaError_t err_ = (x);                                               \
    if (err_ != cudaSuccess) {                                            \
      printf("%s: %s line %d\n", #x, cudaGetErrorString(err_), __LINE__); \
      exit(1);                                                            \
    }                                                                     \
  } while (0)

__device__ void linear_copy(uint32_t to, const char* from, uint32_t bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

struct Maps {
  CUtensorMap two, one;
};

// how: 0 nine boxes of 64x64, 1 four double boxes and one, 2 one linear copy of 72 KB, 3 64 linear
// copies of 1152 bytes.
__global__ void stream(const __grid_constant__ Maps maps, const char* base, int how, int share,
                       int blocks_each, int total_blocks) {
  extern __shared__ __align__(1024) char smem[];
  __shared__ uint64_t full[2];
  if (threadIdx.x != 0) return;
  mbarrier_init(&full[0], 1), mbarrier_init(&full[1], 1);
  mbarrier_init_fence();
  const int stream_id = blockIdx.x / share;
  for (int i = 0; i < blocks_each + 2; i++) {
    const int b = i & 1;
    if (i >= 2) mbarrier_wait(&full[b], (i / 2 - 1) & 1);
    if (i >= blocks_each) continue;
    const int block = (int)(((long long)stream_id * blocks_each + i) * 7919 % total_blocks);
    mbarrier_arrive_expect(&full[b], 73728);
    const uint32_t to = shared_address(smem) + b * 73728;
    if (how == 0)
      for (int c = 0; c < 9; c++)
        tensor_copy_to_shared(to + c * 8192, &maps.one, 0, block * 64, c, &full[b]);
    if (how == 1) {
      for (int c = 0; c < 4; c++)
        tensor_copy_to_shared(to + c * 16384, &maps.two, 0, block * 64, c * 2, &full[b]);
      tensor_copy_to_shared(to + 65536, &maps.one, 0, block * 64, 8, &full[b]);
    }
    if (how == 2) linear_copy(to, base + (size_t)block * 73728, 73728, &full[b]);
    if (how == 3)
      for (int r = 0; r < 64; r++)
        linear_copy(to + r * 1152, base + (size_t)block * 73728 + r * 1152, 1152, &full[b]);
  }
}

int main() {
  const int total = 16384;  // 1.2 GB
  char* base;
  CK(cudaMalloc(&base, (size_t)total * 73728));
  CK(cudaMemset(base, 1, (size_t)total * 73728));
  void* entry;
  cudaDriverEntryPointQueryResult found;
  CK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault,
                                      &found));
  auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
  CK(cudaFuncSetAttribute(stream, cudaFuncAttributeMaxDynamicSharedMemorySize, 147456));
  for (int promo = 0; promo < 4; promo++) {
    Maps maps;
    for (int z = 1; z <= 2; z++) {
      cuuint64_t shape[3] = {64, (cuuint64_t)total * 64, 9}, stride[2] = {1152, 128};
      cuuint32_t box[3] = {64, 64, (cuuint32_t)z}, es[3] = {1, 1, 1};
      encode(z == 1 ? &maps.one : &maps.two, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, base, shape,
             stride, box, es, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             (CUtensorMapL2promotion)promo, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    }
    for (int how = 0; how < 4; how++) {
      if (how >= 2 && promo > 0) continue;
      for (int share : {1, 3, 33}) {
        const int each = 120;
        cudaEvent_t a, b;
        CK(cudaEventCreate(&a));
        CK(cudaEventCreate(&b));
        std::vector<float> t;
        for (int i = 0; i < 5; i++) {
          CK(cudaEventRecord(a));
          stream<<<132, 32, 147456>>>(maps, base, how, share, each, total);
          CK(cudaEventRecord(b));
          CK(cudaDeviceSynchronize());
          float ms;
          CK(cudaEventElapsedTime(&ms, a, b));
          t.push_back(ms);
        }
        std::sort(t.begin(), t.end());
        printf(
            "promotion %d, how %d, %2d CTAs share a stream: %.2f us a tile, %.2f TB/s into SMs\n",
            promo, how, share, t[2] * 1000 / each, 132.0 * each * 73728 / t[2] / 1e9);
      }
    }
  }
}
