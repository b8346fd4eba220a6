#include "tensor/buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/error.h"

namespace coppice {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kLazy = std::size_t{64} << 20;

[[noreturn]] void throw_out_of_memory(std::size_t num_bytes) {
  throw Error(ErrorKind::kOutOfMemory,
              "cannot allocate " + std::to_string(num_bytes) + " bytes of host memory");
}

// Fresh pages of the kernel are zero and cost nothing until they are touched.
Buffer map_pages(std::size_t num_bytes) {
  const std::size_t size = (num_bytes + 2 * kHugePage - 1) / kHugePage * kHugePage;
  void* const base = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) throw_out_of_memory(num_bytes);
  const auto address = reinterpret_cast<std::uintptr_t>(base);
  void* const data = static_cast<std::byte*>(base) + (kHugePage - address % kHugePage) % kHugePage;
  madvise(data, num_bytes, MADV_HUGEPAGE);
  return Buffer(data, num_bytes, Device::kCpu, [base, size](void*) { munmap(base, size); });
}

}  // namespace

Buffer::Buffer(void* data, std::size_t num_bytes, Device device, Deleter deleter)
    : data_(data, std::move(deleter)), num_bytes_(num_bytes), device_(device) {}

Buffer Buffer::host(std::size_t num_bytes) {
  if (num_bytes >= kLazy) return map_pages(num_bytes);
  const std::size_t alignment = num_bytes >= 2 * kHugePage ? kHugePage : kAlignment;
  const std::size_t rounded =
      (std::max<std::size_t>(num_bytes, 1) + alignment - 1) / alignment * alignment;
  void* data = std::aligned_alloc(alignment, rounded);
  if (data == nullptr) throw_out_of_memory(num_bytes);
  if (alignment == kHugePage) madvise(data, rounded, MADV_HUGEPAGE);
  std::memset(data, 0, rounded);
  return Buffer(data, num_bytes, Device::kCpu, [](void* pointer) { std::free(pointer); });
}

Tensor Buffer::tensor(DType dtype, std::initializer_list<std::int64_t> shape,
                      std::size_t offset_bytes) const {
  Tensor view(static_cast<std::byte*>(data_.get()) + offset_bytes, dtype, shape, device_);
  COPPICE_CHECK_LE(offset_bytes + static_cast<std::size_t>(view.num_bytes()), num_bytes_);
  return view;
}

}  // namespace coppice
