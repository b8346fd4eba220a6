// Costs that decide the shape of the attention kernel: writing and merging a 64 x 512 fp32 partial
// result per CTA, and what a conditional graph node adds, with programmatic launches around it.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CK(x)                                                             \
  do {                                                                    \
    cudaError_t err_ = (x);                                               \
    if (err_ != cudaSuccess) {                                            \
      printf("%s: %s line %d\n", #x, cudaGetErrorString(err_), __LINE__); \
      exit(1);                                                            \
    }                                                                     \
  } while (0)

// mode bit 0: write the 128 KB, bit 1: read and merge it. Reports cycles per round.
__global__ void __launch_bounds__(256, 1)
    partial_cost(float4* scratch, int slots, int rounds, int mode, long long* cycles, float* sink) {
  float o[128];
#pragma unroll
  for (int i = 0; i < 128; i++) o[i] = threadIdx.x * 0.001f + i;
  __syncthreads();
  long long t0 = clock64();
  for (int r = 0; r < rounds; r++) {
    float4* p = scratch + (size_t(blockIdx.x) * slots + r % slots) * 8192 + threadIdx.x;
    if (mode & 2) {
      float a = 0.5f + 0.001f * r, b = 1.f - a;
#pragma unroll
      for (int i = 0; i < 32; i++) {
        float4 v = __ldcg(p + i * 256);
        o[4 * i] = o[4 * i] * a + v.x * b, o[4 * i + 1] = o[4 * i + 1] * a + v.y * b;
        o[4 * i + 2] = o[4 * i + 2] * a + v.z * b, o[4 * i + 3] = o[4 * i + 3] * a + v.w * b;
      }
    }
    if (mode & 1) {
#pragma unroll
      for (int i = 0; i < 32; i++)
        __stcg(p + i * 256, make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]));
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) cycles[blockIdx.x] = (clock64() - t0) / rounds;
  float s = 0;
#pragma unroll
  for (int i = 0; i < 128; i++) s += o[i];
  sink[blockIdx.x * 256 + threadIdx.x] = s;
}

__global__ void small_kernel(float* x) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
  if (threadIdx.x == 0) x[blockIdx.x] += 1;
}

__global__ void set_condition(cudaGraphConditionalHandle h, const int* flag) {
  cudaGraphSetConditional(h, *flag);
}

void launch_small(cudaStream_t s, float* x, bool pdl) {
  cudaLaunchConfig_t c = {};
  c.gridDim = 132, c.blockDim = 128, c.stream = s;
  cudaLaunchAttribute a = {};
  a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  a.val.programmaticStreamSerializationAllowed = 1;
  c.attrs = &a, c.numAttrs = pdl ? 1 : 0;
  CK(cudaLaunchKernelEx(&c, small_kernel, x));
}

float time_graph(cudaGraph_t g, cudaStream_t s) {
  cudaGraphExec_t e;
  CK(cudaGraphInstantiate(&e, g, 0));
  cudaEvent_t a, b;
  CK(cudaEventCreate(&a));
  CK(cudaEventCreate(&b));
  std::vector<float> t;
  for (int i = 0; i < 15; i++) {
    CK(cudaEventRecord(a, s));
    CK(cudaGraphLaunch(e, s));
    CK(cudaEventRecord(b, s));
    CK(cudaStreamSynchronize(s));
    float ms;
    CK(cudaEventElapsedTime(&ms, a, b));
    t.push_back(ms * 1000);
  }
  std::sort(t.begin(), t.end());
  CK(cudaGraphExecDestroy(e));
  return t[t.size() / 2];
}

int main() {
  float4* scratch;
  long long* cycles;
  float* sink;
  CK(cudaMalloc(&scratch, size_t(132) * 8 * 131072));
  CK(cudaMemset(scratch, 0, size_t(132) * 8 * 131072));
  CK(cudaMalloc(&cycles, 132 * 8));
  CK(cudaMalloc(&sink, 132 * 256 * 4));
  for (int grid : {1, 32, 132})
    for (int slots : {1, 2, 8})
      for (int mode : {1, 2, 3}) {
        for (int i = 0; i < 2; i++)
          partial_cost<<<grid, 256>>>(scratch, slots, 64, mode, cycles, sink);
        CK(cudaDeviceSynchronize());
        std::vector<long long> c(grid);
        CK(cudaMemcpy(c.data(), cycles, grid * 8, cudaMemcpyDeviceToHost));
        long long m = *std::max_element(c.begin(), c.end());
        printf("128 KB a CTA, %3d CTAs, %d slots, %-14s %6lld cycles = %5.1f bytes/cycle each\n",
               grid, slots,
               mode == 1   ? "write"
               : mode == 2 ? "read+merge"
                           : "read+merge+write",
               m, (mode == 3 ? 262144.0 : 131072.0) / m);
      }
  cudaStream_t s;
  CK(cudaStreamCreate(&s));
  float* x;
  CK(cudaMalloc(&x, 1024));
  CK(cudaMemset(x, 0, 1024));
  int* flag;
  CK(cudaMalloc(&flag, 4));
  int one = 1;
  CK(cudaMemcpy(flag, &one, 4, cudaMemcpyHostToDevice));
  // Chains of 200 small kernels, captured; then every 10th kernel wrapped in a conditional node.
  for (int pdl = 0; pdl < 2; pdl++) {
    cudaGraph_t g;
    CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < 200; i++) launch_small(s, x, pdl);
    CK(cudaStreamEndCapture(s, &g));
    printf("200 small kernels, pdl %d: %.2f us a kernel\n", pdl, time_graph(g, s) / 200);
    for (int value = 0; value < 2; value++) {
      CK(cudaMemcpy(flag, &value, 4, cudaMemcpyHostToDevice));
      cudaGraph_t h;
      CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
      int conditionals = 0;
      for (int i = 0; i < 200; i++) {
        launch_small(s, x, pdl);
        if (i % 10 != 9) continue;
        cudaStreamCaptureStatus st;
        cudaGraph_t cg;
        const cudaGraphNode_t* deps;
        size_t n;
        const cudaGraphEdgeData* edges;
        CK(cudaStreamGetCaptureInfo(s, &st, nullptr, &cg, &deps, &edges, &n));
        cudaGraphConditionalHandle handle;
        CK(cudaGraphConditionalHandleCreate(&handle, cg, 0, cudaGraphCondAssignDefault));
        set_condition<<<1, 1, 0, s>>>(handle, flag);
        CK(cudaGetLastError());
        CK(cudaStreamGetCaptureInfo(s, &st, nullptr, &cg, &deps, &edges, &n));
        cudaGraphNodeParams p = {};
        p.type = cudaGraphNodeTypeConditional;
        p.conditional.handle = handle;
        p.conditional.type = cudaGraphCondTypeIf;
        p.conditional.size = 1;
        cudaGraphNode_t node;
        cudaError_t err = cudaGraphAddNode(&node, cg, deps, edges, n, &p);
        if (err != cudaSuccess) {
          printf("conditional node after %zu edges: %s\n", n, cudaGetErrorString(err));
          return 0;
        }
        cudaStream_t inner;
        CK(cudaStreamCreate(&inner));
        CK(cudaStreamBeginCaptureToGraph(inner, p.conditional.phGraph_out[0], nullptr, nullptr, 0,
                                         cudaStreamCaptureModeGlobal));
        launch_small(inner, x, pdl);
        launch_small(inner, x, pdl);
        CK(cudaStreamEndCapture(inner, nullptr));
        CK(cudaStreamUpdateCaptureDependencies(s, &node, nullptr, 1,
                                               cudaStreamSetCaptureDependencies));
        conditionals++;
      }
      CK(cudaStreamEndCapture(s, &h));
      size_t n = 0;
      CK(cudaGraphGetEdges(h, nullptr, nullptr, nullptr, &n));
      std::vector<cudaGraphNode_t> from(n), to(n);
      std::vector<cudaGraphEdgeData> data(n);
      CK(cudaGraphGetEdges(h, from.data(), to.data(), data.data(), &n));
      int programmatic = 0;
      for (auto& d : data) programmatic += d.type == cudaGraphDependencyTypeProgrammatic;
      printf(
          "with %d conditional nodes (taken: %d, two kernels inside), pdl %d: %.1f us more in all; "
          "%d of %zu edges programmatic\n",
          conditionals, value, pdl, time_graph(h, s) - time_graph(g, s), programmatic, n);
    }
  }
}
