#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace coppice {
namespace {

// Closes a descriptor on every way out.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

std::string cause_of(int error) {
  return error == ENOENT ? "no such file" : std::string(std::strerror(error));
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  // O_NONBLOCK: opening a pipe must not wait for its other end.
  const Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0)
    throw Error(errno == ENOENT ? ErrorKind::kNotFound : ErrorKind::kBadFile,
                name() + ": " + cause_of(errno));
  struct stat status {};
  if (fstat(fd.get(), &status) != 0)
    throw Error(ErrorKind::kBadFile, name() + ": " + cause_of(errno));
  if (!S_ISREG(status.st_mode))
    throw Error(ErrorKind::kBadFile, name() + ": not a regular file" +
                                         (S_ISDIR(status.st_mode) ? " but a directory" : ""));
  size_ = static_cast<std::uint64_t>(status.st_size);
  if (size_ == 0) return;
  void* data = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED)
    throw Error(errno == ENOMEM ? ErrorKind::kOutOfMemory : ErrorKind::kBadFile,
                name() + ": cannot map: " + cause_of(errno));
  data_ = static_cast<const std::byte*>(data);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

std::string MappedFile::name() const {
  return printable(path_.string());
}

void MappedFile::dont_need(std::uint64_t offset, std::uint64_t num_bytes) const {
  if (offset >= size_ || num_bytes == 0) return;
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t end = offset + std::min(num_bytes, size_ - offset);
  const std::uint64_t begin = offset / page * page;
  madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

std::string printable(std::string_view text) {
  constexpr std::size_t kMaxBytes = 200;
  std::string out;
  for (const char c : text.substr(0, kMaxBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte == 0x7f ? '?' : c;
  }
  if (text.size() > kMaxBytes) out += "...";
  return out;
}

std::string_view looks_like(std::string_view start) {
  using namespace std::string_view_literals;
  constexpr std::pair<std::string_view, std::string_view> kKnown[] = {
      {"version https://git-lfs"sv, "a Git LFS pointer (run: git lfs pull)"sv},
      {"<!DOCTYPE"sv, "an HTML page (a failed download?)"sv},
      {"<!doctype"sv, "an HTML page (a failed download?)"sv},
      {"<html"sv, "an HTML page (a failed download?)"sv},
      {"\x1f\x8b"sv, "gzip data"sv},
      {"PK\x03\x04"sv, "a zip archive (a PyTorch .bin file?)"sv},
      {"\x28\xb5\x2f\xfd"sv, "zstd data"sv},
      {"GGUF"sv, "a GGUF file"sv},
      {"\x80\x02"sv, "a Python pickle"sv},
  };
  if (start.empty()) return "an empty file";
  for (const auto& [prefix, words] : kKnown)
    if (start.starts_with(prefix)) return words;
  return {};
}

}  // namespace coppice
