// Device arrays, error checks and graph timing for the experiments in this folder.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define LAB_CUDA(call)                                                                      \
  do {                                                                                      \
    const cudaError_t status_ = (call);                                                     \
    if (status_ != cudaSuccess) {                                                           \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status_)); \
      std::exit(1);                                                                         \
    }                                                                                       \
  } while (0)

namespace lab {

template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size, int fill = 0xCD) : size_(size) {
    LAB_CUDA(cudaMalloc(&data_, std::max<size_t>(size, 1) * sizeof(T)));
    this->fill(fill);
  }
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(host.size()) { set(host); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  T* get() const { return data_; }
  size_t size() const { return size_; }
  void fill(int byte) { LAB_CUDA(cudaMemset(data_, byte, size_ * sizeof(T))); }
  void set(const std::vector<T>& host) {
    LAB_CUDA(cudaMemcpy(data_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  std::vector<T> host() const {
    std::vector<T> out(size_);
    LAB_CUDA(cudaDeviceSynchronize());
    LAB_CUDA(cudaMemcpy(out.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return out;
  }

 private:
  T* data_ = nullptr;
  size_t size_;
};

// Median time in us of one of `repeats` calls of body(i, stream) captured in one graph.
template <typename Body>
double time_in_graph(int repeats, Body&& body, int replays = 25) {
  cudaStream_t stream;
  LAB_CUDA(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  LAB_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < repeats; ++i) body(i, stream);
  LAB_CUDA(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec;
  LAB_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin, end;
  LAB_CUDA(cudaEventCreate(&begin));
  LAB_CUDA(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < replays + 3; ++i) {
    LAB_CUDA(cudaEventRecord(begin, stream));
    LAB_CUDA(cudaGraphLaunch(exec, stream));
    LAB_CUDA(cudaEventRecord(end, stream));
    LAB_CUDA(cudaStreamSynchronize(stream));
    float ms = 0;
    LAB_CUDA(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 3) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  LAB_CUDA(cudaGraphExecDestroy(exec));
  LAB_CUDA(cudaGraphDestroy(graph));
  LAB_CUDA(cudaStreamDestroy(stream));
  return times[times.size() / 2] * 1000.0 / repeats;
}

}  // namespace lab
