// What the programs that time other people's kernels share: device memory, the time of a captured
// graph, and the JSON that `coppice bench kernels --peers` reads.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#define CHECK(call)                                                       \
  do {                                                                    \
    const cudaError_t error = (call);                                     \
    if (error != cudaSuccess) {                                           \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error)); \
      std::exit(1);                                                       \
    }                                                                     \
  } while (0)

namespace peer {

// `count` zeros in device memory. They are there on return: streams that do not wait for the
// default one could otherwise write first and have it cleared.
template <class T>
T* device(size_t count) {
  void* pointer = nullptr;
  CHECK(cudaMalloc(&pointer, count * sizeof(T)));
  CHECK(cudaMemset(pointer, 0, count * sizeof(T)));
  CHECK(cudaDeviceSynchronize());
  return static_cast<T*>(pointer);
}

template <class T>
T* to_device(const std::vector<T>& values) {
  T* pointer = device<T>(values.size());
  CHECK(cudaMemcpy(pointer, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return pointer;
}

// Microseconds a call: `calls` calls run(0), run(1) ... in one graph, median of 11 replays after 2.
template <class Run>
double time_us(int calls, cudaStream_t stream, Run run) {
  constexpr int kWarmUps = 2, kReplays = 11;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < calls; ++i) run(i);
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < kWarmUps + kReplays; ++i) {
    float ms = 0;
    CHECK(cudaEventRecord(begin, stream));
    CHECK(cudaGraphLaunch(executable, stream));
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaEventSynchronize(end));
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (i >= kWarmUps) times.push_back(ms * 1000 / static_cast<float>(calls));
  }
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  CHECK(cudaGraphExecDestroy(executable));
  CHECK(cudaGraphDestroy(graph));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// One peer's times by case: printed, and written to a file after each, so that a run that is
// stopped leaves what it has.
class Report {
 public:
  // Null path: no file.
  Report(std::string name, const char* path) : name_(std::move(name)), path_(path) {}

  // False, with a line that says so, if a case's output was wrong.
  bool accept(const std::string& key, double error, double limit) {
    if (error < limit) return true;
    std::printf("%-28s WRONG: error %.3g\n", key.c_str(), error);
    return false;
  }
  void add(const std::string& key, double us, double error) {
    std::printf("%-28s %s %9.2f us, error %.1e\n", key.c_str(), name_.c_str(), us, error);
    std::fflush(stdout);
    char number[32];
    std::snprintf(number, sizeof(number), "%.3f", us);
    items_ += (items_.empty() ? "\n \"" : ",\n \"") + key + "\": [{\"name\": \"" + name_ +
              "\", \"us\": " + number + "}]";
    if (path_ == nullptr) return;
    std::FILE* const file = std::fopen(path_, "w");
    if (file == nullptr || std::fprintf(file, "{\"peers\": {%s\n}}\n", items_.c_str()) < 0 ||
        std::fclose(file) != 0) {
      std::fprintf(stderr, "%s cannot be written\n", path_);
      std::exit(1);
    }
  }

 private:
  std::string name_, items_;
  const char* path_;
};

}  // namespace peer
