#include "io/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "io/json.h"
#include "io/mapped_file.h"

namespace coppice {
namespace {

constexpr std::size_t kDataAlignment = 64;

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& action) {
  throw Error(ErrorKind::kUnavailable,
              printable(path.string()) + ": cannot " + action + ": " + std::strerror(errno));
}

std::string header_of(const std::vector<TensorSpec>& tensors, const SafetensorsMetadata& metadata,
                      std::uint64_t& data_bytes) {
  Json header = Json::object();
  if (!metadata.empty()) {
    Json strings = Json::object();
    for (const auto& [key, value] : metadata) strings[key] = value;
    header["__metadata__"] = std::move(strings);
  }
  data_bytes = 0;
  for (const TensorSpec& tensor : tensors) {
    const std::optional<std::uint64_t> bytes = storage_bytes(tensor.type, tensor.shape);
    COPPICE_CHECK(bytes.has_value(), tensor.name);
    Json shape = Json::array();
    for (const std::int64_t size : tensor.shape) shape.push_back(size);
    // Appended directly: a look-up per tensor would be quadratic in a shard of thousands.
    header.as_object().emplace_back(
        tensor.name,
        Json::object({{"dtype", name_of(tensor.type)},
                      {"shape", std::move(shape)},
                      {"data_offsets", Json::array({data_bytes, data_bytes + *bytes})}}));
    data_bytes += *bytes;
  }
  std::string text = write_json(header);
  text.append((kDataAlignment - (text.size() + 8) % kDataAlignment) % kDataAlignment, ' ');
  return text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     const std::vector<TensorSpec>& tensors,
                                     const SafetensorsMetadata& metadata)
    : path_(path), part_path_(path.string() + ".part") {
  const std::string header = header_of(tensors, metadata, expected_bytes_);
  fd_ = open(part_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail(part_path_, "create");
  const auto length = static_cast<std::uint64_t>(header.size());
  write_all(reinterpret_cast<const std::byte*>(&length), sizeof(length));
  write_all(reinterpret_cast<const std::byte*>(header.data()), header.size());
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(part_path_.c_str());
}

void SafetensorsWriter::write_all(const std::byte* data, std::size_t num_bytes) {
  while (num_bytes > 0) {
    const ssize_t count = ::write(fd_, data, num_bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(part_path_, "write");
    data += count;
    num_bytes -= static_cast<std::size_t>(count);
  }
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  COPPICE_CHECK_GE(fd_, 0);
  written_bytes_ += bytes.size();
  COPPICE_CHECK_LE(written_bytes_, expected_bytes_);
  write_all(bytes.data(), bytes.size());
}

void SafetensorsWriter::finish() {
  COPPICE_CHECK_EQ(written_bytes_, expected_bytes_);
  if (fsync(fd_) != 0) fail(part_path_, "flush");
  if (rename(part_path_.c_str(), path_.c_str()) != 0) fail(path_, "rename");
  close(fd_);
  fd_ = -1;
}

void write_text_file(const std::filesystem::path& path, std::string_view text) {
  const std::filesystem::path part_path = path.string() + ".part";
  const int fd = open(part_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) fail(part_path, "create");
  std::size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = ::write(fd, text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      close(fd);
      unlink(part_path.c_str());
      fail(part_path, "write");
    }
    written += static_cast<std::size_t>(count);
  }
  const bool flushed = fsync(fd) == 0;
  close(fd);
  if (!flushed || rename(part_path.c_str(), path.c_str()) != 0) fail(path, "replace");
}

}  // namespace coppice
