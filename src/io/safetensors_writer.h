// Writer of .safetensors files that appear complete or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/tensor_info.h"

namespace coppice {

struct TensorSpec {
  std::string name;
  StorageType type = StorageType::kF32;
  std::vector<std::int64_t> shape;
};

using SafetensorsMetadata = std::vector<std::pair<std::string, std::string>>;

// Streams tensors whose list is known up front. The data starts at a multiple of 64 bytes; list
// wide element types first to keep every tensor aligned. Bytes go to PATH.part, which finish()
// renames; a writer destroyed before that removes it. Throws Error kUnavailable "PATH: cause" when
// the disk does not take the data.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<TensorSpec>& tensors,
                    const SafetensorsMetadata& metadata = {});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // The next bytes of the data, in the order of the list; calls need not match tensor boundaries.
  void write(std::span<const std::byte> bytes);
  // Checks that exactly all bytes came, flushes to disk and gives the file its name.
  void finish();

 private:
  void write_all(const std::byte* data, std::size_t num_bytes);

  std::filesystem::path path_;
  std::filesystem::path part_path_;
  int fd_ = -1;
  std::uint64_t expected_bytes_ = 0;
  std::uint64_t written_bytes_ = 0;
};

// Replaces a small file in the same all-or-nothing way (config.json, an index).
void write_text_file(const std::filesystem::path& path, std::string_view text);

}  // namespace coppice
