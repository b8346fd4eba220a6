#include "io/text_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>

#include "base/error.h"

namespace coppice {

std::string read_text_file(const std::string& path, const std::string& name) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  if (!file) throw Error(ErrorKind::kNotFound, name + ": cannot be read: " + std::strerror(errno));
  std::string text;
  char bytes[65536];
  for (std::size_t count = 1; count > 0;) {
    count = std::fread(bytes, 1, sizeof bytes, file.get());
    text.append(bytes, count);
  }
  if (std::ferror(file.get()) != 0)
    throw Error(ErrorKind::kBadFile, name + ": cannot be read: " + std::strerror(errno));
  return text;
}

void write_text_file(const std::string& path, std::string_view text, const std::string& name) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw Error(ErrorKind::kUnavailable, name + ": cannot be written");
}

}  // namespace coppice
