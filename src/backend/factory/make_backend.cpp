#include "backend/factory/make_backend.h"

#include <charconv>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "base/error.h"

namespace coppice {
namespace {

constexpr int kMaxThreads = 1024;

// N of "cuda:N"; -1 when the text is something else.
int cuda_index(const std::string& device) {
  constexpr std::string_view kPrefix = "cuda:";
  if (device == "cuda") return 0;
  if (!device.starts_with(kPrefix)) return -1;
  int index = -1;
  const char* const end = device.data() + device.size();
  const auto [stop, error] = std::from_chars(device.data() + kPrefix.size(), end, index);
  return error == std::errc() && stop == end && index >= 0 ? index : -1;
}

}  // namespace

std::unique_ptr<Backend> make_backend(const BackendOptions& options) {
  if (options.num_threads < 0 || options.num_threads > kMaxThreads)
    throw Error(ErrorKind::kInvalidArgument, "threads: " + std::to_string(options.num_threads) +
                                                 " is not from 0 to " +
                                                 std::to_string(kMaxThreads));
  if (options.device == "cpu") return make_cpu_backend(CpuPath::kFast, options.num_threads);
  if (options.device == "cpu-reference")
    return make_cpu_backend(CpuPath::kReference, options.num_threads);
  if (options.device == "cpu-avx2") return make_cpu_backend(CpuPath::kAvx2, options.num_threads);
  if (options.device == "cpu-avx512")
    return make_cpu_backend(CpuPath::kAvx512, options.num_threads);
  if (options.device == "auto") {
    try {
      return make_cuda_backend(0);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUnsupported) throw;
      return make_cpu_backend(CpuPath::kFast, options.num_threads);
    }
  }
  if (const int index = cuda_index(options.device); index >= 0) return make_cuda_backend(index);
  throw Error(ErrorKind::kInvalidArgument,
              "device: '" + options.device +
                  "' is none of auto, cpu, cpu-reference, cpu-avx2, cpu-avx512, cuda, cuda:N");
}

std::unique_ptr<DeviceMeter> make_device_meter(Backend& backend, const BackendOptions& options) {
  if (backend.device() == Device::kCuda) return make_cuda_meter(backend);
  return make_cpu_meter(backend, options.num_threads);
}

}  // namespace coppice
