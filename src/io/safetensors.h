// Reader of one .safetensors file.
//
// Format: u64 little-endian header length N (at most 100,000,000); N bytes of JSON that start with
// '{' and may end in spaces; then the data. Each member of the JSON is a tensor {dtype, shape,
// data_offsets [begin, end) from the start of the data}; `__metadata__` maps strings to strings.
// Checked: known dtypes, end - begin = elements x size, tensors that tile the data without a hole
// or an overlap, file length = 8 + N + last end, no name twice.
// Source: https://huggingface.co/docs/safetensors (format description).
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "io/mapped_file.h"
#include "io/tensor_info.h"

namespace coppice {

// Immutable after construction; reads from any number of threads.
class SafetensorsFile {
 public:
  // Maps the file and checks the header against every rule above. Throws Error (kNotFound or
  // kBadFile) "PATH: cause" or "PATH: tensor 'x': cause". `file_index` goes into TensorInfo::file.
  explicit SafetensorsFile(const std::filesystem::path& path, std::uint32_t file_index = 0);

  const MappedFile& file() const { return file_; }
  // In the order of the header.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  // Hands the list over (a Checkpoint joins the lists of its shards).
  std::vector<TensorInfo> take_tensors() { return std::move(tensors_); }
  MappedFile take_file() { return std::move(file_); }
  const std::vector<std::pair<std::string, std::string>>& metadata() const { return metadata_; }

 private:
  MappedFile file_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::pair<std::string, std::string>> metadata_;
};

}  // namespace coppice
