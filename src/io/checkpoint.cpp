#include "io/checkpoint.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <optional>
#include <thread>

#include "base/thread_pool.h"
#include "io/checkpoint_files.h"
#include "io/gguf.h"
#include "io/safetensors.h"

namespace coppice {
namespace {

// Runs job(i) for i in [0, count) on up to num_threads threads; rethrows the exception of the
// smallest i, so that the message does not depend on timing. Progress counts finished jobs.
void run_jobs(std::size_t count, int num_threads, const ProgressCallback& progress,
              const std::function<void(std::size_t)>& job) {
  std::vector<std::exception_ptr> errors(count);
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::int64_t done = 0;
  const auto work = [&] {
    for (std::size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
      try {
        job(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
      if (!progress) continue;
      const std::lock_guard lock(mutex);
      progress(++done, static_cast<std::int64_t>(count));
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < num_threads; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

Tensor make_view(const std::byte* data, DType dtype, const std::vector<std::int64_t>& shape) {
  void* pointer = const_cast<std::byte*>(data);
  switch (shape.size()) {
    case 0:
      return Tensor(pointer, dtype, {1});
    case 1:
      return Tensor(pointer, dtype, {shape[0]});
    case 2:
      return Tensor(pointer, dtype, {shape[0], shape[1]});
    case 3:
      return Tensor(pointer, dtype, {shape[0], shape[1], shape[2]});
    default:
      return Tensor(pointer, dtype, {shape[0], shape[1], shape[2], shape[3]});
  }
}

}  // namespace

Checkpoint::Checkpoint(const std::filesystem::path& path, const CheckpointOptions& options)
    : path_(path) {
  const CheckpointFiles found = find_checkpoint_files(path);
  if (found.is_gguf) {
    GgufFile gguf(found.paths[0]);
    tensors_ = gguf.take_tensors();
    gguf_metadata_ = gguf.take_metadata();
    files_.push_back(gguf.take_file());
  } else {
    open_safetensors(found, options);
  }
  index_names();
  if (!found.weight_map.empty()) keep_listed(found);
}

Checkpoint::~Checkpoint() = default;

void Checkpoint::open_safetensors(const CheckpointFiles& found, const CheckpointOptions& options) {
  const std::size_t count = found.paths.size();
  // More threads than CPUs help where the headers come over a network.
  constexpr int kUsefulThreads = 8;
  const int useful = std::max(available_cpus(), kUsefulThreads);
  const int threads =
      std::min(options.num_threads > 0 ? options.num_threads : useful, static_cast<int>(count));
  std::vector<std::optional<SafetensorsFile>> shards(count);
  run_jobs(count, threads, options.progress, [&](std::size_t i) {
    shards[i].emplace(found.paths[i], static_cast<std::uint32_t>(i));
  });
  for (std::optional<SafetensorsFile>& shard : shards) {
    std::vector<TensorInfo> tensors = shard->take_tensors();
    std::move(tensors.begin(), tensors.end(), std::back_inserter(tensors_));
    files_.push_back(shard->take_file());
  }
}

void Checkpoint::index_names() {
  by_name_.clear();
  by_name_.reserve(tensors_.size());
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto [entry, added] = by_name_.emplace(tensors_[i].name, static_cast<std::uint32_t>(i));
    if (!added) fail(tensors_[i], "is also in " + files_[tensors_[entry->second].file].name());
  }
}

void Checkpoint::keep_listed(const CheckpointFiles& found) {
  std::vector<bool> listed(tensors_.size(), false);
  const std::string index_name = printable(found.index_path.filename().string());
  for (const auto& [name, file] : found.weight_map) {
    const auto entry = by_name_.find(name);
    const std::string where = files_[file].name() + ": tensor '" + printable(name) + "': ";
    if (entry == by_name_.end())
      throw Error(ErrorKind::kBadFile, where + "missing, but " + index_name + " lists it here");
    const std::uint32_t actual = tensors_[entry->second].file;
    if (actual != file)
      throw Error(ErrorKind::kBadFile,
                  where + index_name + " lists it here, but it is in " + files_[actual].name());
    listed[entry->second] = true;
  }
  if (found.weight_map.size() == tensors_.size()) return;
  unlisted_tensors_ = static_cast<std::int64_t>(tensors_.size() - found.weight_map.size());
  std::vector<TensorInfo> kept;
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    if (listed[i]) kept.push_back(std::move(tensors_[i]));
  tensors_ = std::move(kept);
  index_names();
}

std::filesystem::path Checkpoint::directory() const {
  return std::filesystem::is_directory(path_) ? path_ : path_.parent_path();
}

std::uint64_t Checkpoint::total_bytes() const {
  std::uint64_t total = 0;
  for (const TensorInfo& info : tensors_) total += info.num_bytes;
  return total;
}

const TensorInfo* Checkpoint::find(std::string_view name) const {
  const auto entry = by_name_.find(name);
  return entry == by_name_.end() ? nullptr : &tensors_[entry->second];
}

const TensorInfo& Checkpoint::at(std::string_view name) const {
  if (const TensorInfo* info = find(name)) return *info;
  throw Error(ErrorKind::kBadFile,
              printable(path_.string()) + ": tensor '" + printable(name) + "' is missing");
}

std::span<const std::byte> Checkpoint::bytes(const TensorInfo& info) const {
  return files_[info.file].bytes().subspan(info.offset, info.num_bytes);
}

Tensor Checkpoint::tensor(const TensorInfo& info) const {
  const std::optional<DType> dtype = traits_of(info.type).dtype;
  if (!dtype)
    fail(info, std::string("is ") + name_of(info.type) + ", which has no plain view",
         ErrorKind::kUnsupported);
  if (info.shape.size() > Tensor::kMaxDims)
    fail(info, info.describe() + " has more than four dimensions", ErrorKind::kUnsupported);
  const std::byte* data = bytes(info).data();
  if (reinterpret_cast<std::uintptr_t>(data) % size_of(*dtype) != 0) {
    const std::lock_guard lock(mutex_);
    Buffer& copy = aligned_[&info];
    if (copy.data() == nullptr) {
      copy = Buffer::host(info.num_bytes);
      std::memcpy(copy.data(), data, info.num_bytes);
    }
    data = static_cast<const std::byte*>(copy.data());
  }
  return make_view(data, *dtype, info.shape);
}

Tensor Checkpoint::tensor(std::string_view name, DType dtype,
                          std::initializer_list<std::int64_t> shape) const {
  const TensorInfo& info = at(name);
  if (traits_of(info.type).dtype != dtype ||
      !std::equal(info.shape.begin(), info.shape.end(), shape.begin(), shape.end())) {
    const TensorInfo expected{.name = {}, .type = storage_of(dtype), .shape = shape};
    fail(info, "is " + info.describe() + ", expected " + expected.describe());
  }
  return tensor(info);
}

void Checkpoint::dont_need(const TensorInfo& info) const {
  files_[info.file].dont_need(info.offset, info.num_bytes);
}

void Checkpoint::fail(const TensorInfo& info, const std::string& cause, ErrorKind kind) const {
  throw Error(kind, files_[info.file].name() + ": tensor '" + printable(info.name) + "': " + cause);
}

}  // namespace coppice
