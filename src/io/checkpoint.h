// A checkpoint as one map from tensor name to bytes: a directory with model.safetensors, with
// shards and model.safetensors.index.json, or with one .gguf file; or such a file itself.
//
// Opening maps every file and checks every header; nothing else is read until asked for. Errors are
// "FILE: cause" or "FILE: tensor 'x': cause". Which shard holds a tensor is what the index says:
// a tensor named by the index but absent from its shard, or present in two shards, is an error; a
// tensor in a shard that the index does not name is left out and counted (unlisted_tensors()).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "io/json.h"
#include "io/mapped_file.h"
#include "io/tensor_info.h"
#include "tensor/buffer.h"
#include "tensor/tensor.h"

namespace coppice {

struct CheckpointFiles;

// Called with the work done and the total; from one thread at a time, done never decreases.
using ProgressCallback = std::function<void(std::int64_t done, std::int64_t total)>;

struct CheckpointOptions {
  int num_threads = 0;             // header parsers; 0: as many as are useful
  ProgressCallback progress = {};  // headers read, of all files
};

// Immutable; all const members are safe from any number of threads. Tensors it returns are views
// into it: read-only memory that a write faults on, valid until the Checkpoint is destroyed.
class Checkpoint {
 public:
  // `path` is a directory, a .safetensors file or a .gguf file (see resolve_model for hub ids).
  explicit Checkpoint(const std::filesystem::path& path, const CheckpointOptions& options = {});
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // The directory that config.json and the tokenizer lie in.
  std::filesystem::path directory() const;
  const std::vector<MappedFile>& files() const { return files_; }
  // By file, then in the order of the header.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  std::uint64_t total_bytes() const;
  std::int64_t unlisted_tensors() const { return unlisted_tensors_; }
  // The keys of a GGUF file (see io/gguf.h); nullptr for safetensors.
  const Json* gguf_metadata() const { return gguf_metadata_ ? &*gguf_metadata_ : nullptr; }

  // nullptr when there is no such tensor.
  const TensorInfo* find(std::string_view name) const;
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  // Throws kBadFile "PATH: tensor 'x' is missing".
  const TensorInfo& at(std::string_view name) const;

  // The stored bytes, for any StorageType.
  std::span<const std::byte> bytes(const TensorInfo& info) const;
  // A view of up to four dimensions; a scalar becomes [1]. Throws kUnsupported for types that are
  // no DType (use bytes()) and for more dimensions. A tensor that lies unaligned in its file is
  // copied once.
  Tensor tensor(const TensorInfo& info) const;
  Tensor tensor(std::string_view name) const { return tensor(at(name)); }
  // The same, after checking type and shape; the message names both.
  Tensor tensor(std::string_view name, DType dtype,
                std::initializer_list<std::int64_t> shape) const;

  // Drops a tensor's pages after use.
  void dont_need(const TensorInfo& info) const;

  // Throws Error "FILE: tensor 'x': cause".
  [[noreturn]] void fail(const TensorInfo& info, const std::string& cause,
                         ErrorKind kind = ErrorKind::kBadFile) const;

 private:
  void open_safetensors(const CheckpointFiles& found, const CheckpointOptions& options);
  void index_names();
  void keep_listed(const CheckpointFiles& found);

  std::filesystem::path path_;
  std::vector<MappedFile> files_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string_view, std::uint32_t> by_name_;  // keys live in tensors_
  std::int64_t unlisted_tensors_ = 0;
  std::optional<Json> gguf_metadata_;
  mutable std::mutex mutex_;  // guards aligned_
  mutable std::unordered_map<const TensorInfo*, Buffer> aligned_;
};

}  // namespace coppice
