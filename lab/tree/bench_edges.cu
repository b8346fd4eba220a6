#include "bench_edges.h"

#include <cstdio>
#include <functional>

#include "device.h"
#include "kernels/common/grid_dependency.cuh"
#include "kernels/common/launch.h"

namespace lab {
namespace {

constexpr int kPairs = 100;

struct StepParams {
  int* counter;
};

// Reads and writes memory like the small kernels of a round.
__global__ void step_kernel(StepParams params) {
  coppice::kernels::grid_dependency_wait();
  coppice::kernels::grid_dependency_launch();
  if (threadIdx.x == 0) *params.counter += 1;
}

__global__ void choose_kernel(StepParams params, cudaGraphConditionalHandle handle,
                              unsigned value) {
  if (threadIdx.x == 0) {
    *params.counter += 1;
    cudaGraphSetConditional(handle, value);
  }
}

double time_graph(cudaGraph_t graph) {
  cudaStream_t stream;
  CHECK_CUDA(cudaStreamCreate(&stream));
  cudaGraphExec_t exec;
  CHECK_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin, end;
  CHECK_CUDA(cudaEventCreate(&begin));
  CHECK_CUDA(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 30; ++i) {
    CHECK_CUDA(cudaEventRecord(begin, stream));
    CHECK_CUDA(cudaGraphLaunch(exec, stream));
    CHECK_CUDA(cudaEventRecord(end, stream));
    CHECK_CUDA(cudaStreamSynchronize(stream));
    float ms;
    CHECK_CUDA(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 5) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  CHECK_CUDA(cudaGraphExecDestroy(exec));
  CHECK_CUDA(cudaStreamDestroy(stream));
  return times[times.size() / 2] * 1000.0;
}

cudaGraphNode_t add_kernel(cudaGraph_t graph, cudaGraphNode_t after, void* kernel, void** args) {
  cudaGraphNodeParams node{};
  node.type = cudaGraphNodeTypeKernel;
  node.kernel.func = kernel;
  node.kernel.gridDim = dim3(1);
  node.kernel.blockDim = dim3(128);
  node.kernel.kernelParams = args;
  cudaGraphNode_t out;
  CHECK_CUDA(cudaGraphAddNode(&out, graph, after == nullptr ? nullptr : &after, nullptr,
                              after == nullptr ? 0 : 1, &node));
  return out;
}

// choose -> conditional { step } -> choose ..., kPairs times. branches 0: plain edges.
double chain(int* counter, cudaGraphConditionalNodeType type, unsigned branches, unsigned value) {
  cudaGraph_t graph;
  CHECK_CUDA(cudaGraphCreate(&graph, 0));
  StepParams params{counter};
  cudaGraphNode_t last = nullptr;
  for (int i = 0; i < kPairs; ++i) {
    if (branches == 0) {
      void* args[] = {&params};
      last = add_kernel(graph, last, reinterpret_cast<void*>(step_kernel), args);
      last = add_kernel(graph, last, reinterpret_cast<void*>(step_kernel), args);
      continue;
    }
    cudaGraphConditionalHandle handle;
    CHECK_CUDA(cudaGraphConditionalHandleCreate(&handle, graph, 0, cudaGraphCondAssignDefault));
    void* choose_args[] = {&params, &handle, &value};
    last = add_kernel(graph, last, reinterpret_cast<void*>(choose_kernel), choose_args);
    cudaGraphNodeParams node{};
    node.type = cudaGraphNodeTypeConditional;
    node.conditional.handle = handle;
    node.conditional.type = type;
    node.conditional.size = branches;
    cudaGraphNode_t conditional;
    CHECK_CUDA(cudaGraphAddNode(&conditional, graph, &last, nullptr, 1, &node));
    for (unsigned b = 0; b < branches; ++b) {
      void* args[] = {&params};
      add_kernel(node.conditional.phGraph_out[b], nullptr, reinterpret_cast<void*>(step_kernel),
                 args);
    }
    last = conditional;
  }
  const double us = time_graph(graph) / kPairs;
  CHECK_CUDA(cudaGraphDestroy(graph));
  return us;
}

}  // namespace

void bench_edges() {
  DeviceArray<int> counter(1, 0);
  const StepParams params{counter.get()};
  const double plain = time_in_graph(
      2 * kPairs, [&](int, cudaStream_t stream) { step_kernel<<<1, 128, 0, stream>>>(params); });
  const double dependent = time_in_graph(2 * kPairs, [&](int, cudaStream_t stream) {
    CHECK_CUDA(coppice::kernels::launch_dependent(step_kernel, dim3(1), 128, 0, stream, params));
  });
  std::printf("one-block kernel in a chain: plain edge %.2f us, programmatic edge %.2f us\n", plain,
              dependent);
  const double two = chain(counter.get(), cudaGraphCondTypeIf, 0, 0);
  std::printf("pair of kernels, plain edges:           %.2f us\n", two);
  std::printf("kernel -> IF (taken) { kernel }:         %.2f us\n",
              chain(counter.get(), cudaGraphCondTypeIf, 1, 1));
  std::printf("kernel -> IF (not taken) { kernel }:     %.2f us\n",
              chain(counter.get(), cudaGraphCondTypeIf, 1, 0));
  for (unsigned branches : {2u, 8u, 16u}) {
    std::printf("kernel -> SWITCH of %2u (last) { kernel }: %.2f us\n", branches,
                chain(counter.get(), cudaGraphCondTypeSwitch, branches, branches - 1));
  }
}

}  // namespace lab
