#include "backend/factory/make_backend.h"

#include <charconv>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "base/error.h"

namespace coppice {
namespace {

constexpr int kMaxThreads = 1024;

// N of "cuda:N", the rank for "cuda"; -1 when the text is something else.
int cuda_index(const std::string& device, int rank) {
  constexpr std::string_view kPrefix = "cuda:";
  if (device == "cuda") return rank;
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
  const auto cpu = [&](CpuPath path) {
    return make_cpu_backend(path, options.num_threads, options.communicator);
  };
  if (options.device == "cpu") return cpu(CpuPath::kFast);
  if (options.device == "cpu-reference") return cpu(CpuPath::kReference);
  if (options.device == "cpu-avx2") return cpu(CpuPath::kAvx2);
  if (options.device == "cpu-avx512") return cpu(CpuPath::kAvx512);
  const int rank =
      options.communicator == nullptr ? 0 : static_cast<int>(options.communicator->rank());
  if (options.device == "auto")
    return num_cuda_devices() > 0 ? make_cuda_backend(rank, options.communicator)
                                  : cpu(CpuPath::kFast);
  if (const int index = cuda_index(options.device, rank); index >= 0)
    return make_cuda_backend(index, options.communicator);
  throw Error(ErrorKind::kInvalidArgument,
              "device: '" + options.device +
                  "' is none of auto, cpu, cpu-reference, cpu-avx2, cpu-avx512, cuda, cuda:N");
}

void check_rank_devices(const std::string& device, std::int64_t num_ranks) {
  if (num_ranks == 1 || device.starts_with("cpu")) return;
  const std::string size = "tensor parallel size " + std::to_string(num_ranks);
  if (device != "auto" && device != "cuda")
    throw Error(ErrorKind::kInvalidArgument, size + ": device '" + device +
                                                 "' is one GPU; 'cuda' takes the first " +
                                                 std::to_string(num_ranks));
  load_cuda_kernels_early();
  const int count = num_cuda_devices();
  if (count == 0 && device == "cuda") make_cuda_backend(0);  // throws the cause
  if (count > 0 && count < num_ranks)
    throw Error(ErrorKind::kUnsupported, size + ": this machine has " + std::to_string(count) +
                                             (count == 1 ? " GPU" : " GPUs"));
}

ExpertRepacker make_expert_repacker(const std::string& device, int num_threads) {
  if (device == "cuda") return make_cuda_repacker(num_threads);
  throw Error(ErrorKind::kUnsupported,
              "device: '" + device + "' takes experts as they are published only");
}

std::unique_ptr<DeviceMeter> make_device_meter(Backend& backend, const BackendOptions& options) {
  if (backend.device() == Device::kCuda) return make_cuda_meter(backend);
  return make_cpu_meter(backend, options.num_threads);
}

}  // namespace coppice
