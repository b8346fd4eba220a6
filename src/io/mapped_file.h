// A whole file mapped read-only, and words for messages about files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace coppice {

// Owns the mapping (PROT_READ, MAP_PRIVATE); move-only. Reads from any number of threads.
// A file that shrinks while mapped faults on access, as for every mmap reader.
class MappedFile {
 public:
  MappedFile() = default;
  // Throws kNotFound (no such file) or kBadFile (directory, pipe, device, no permission), naming
  // the path. An empty file maps to an empty span.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }
  std::string name() const;  // the path, fit for a message
  std::uint64_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, static_cast<std::size_t>(size_)}; }
  std::string_view text() const {
    return {reinterpret_cast<const char*>(data_), static_cast<std::size_t>(size_)};
  }

  // Asks the kernel to drop a byte range from memory. Never fails.
  void dont_need(std::uint64_t offset, std::uint64_t num_bytes) const;

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
};

// `text` on one line for a message: control characters become '?', long text is cut at 200 bytes.
std::string printable(std::string_view text);

// What the first bytes of a file that should be something else look like ("a Git LFS pointer (run:
// git lfs pull)", "an HTML page", "gzip data", "an empty file" ...); empty when nothing known.
std::string_view looks_like(std::string_view start);

}  // namespace coppice
