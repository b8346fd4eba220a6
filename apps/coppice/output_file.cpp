#include "output_file.h"

#include <filesystem>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "io/text_file.h"

namespace coppice {

OutputFile::OutputFile(const std::string& flag, std::string path)
    : name_(flag.empty() ? path : flag + " " + path), path_(std::move(path)) {
  if (path_.empty()) return;
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(path_, ignored);
  const bool is_new = status.type() == std::filesystem::file_type::not_found;
  // Opening a pipe could wait for a reader, and closing it would end what it reads.
  if (!is_new && !std::filesystem::is_regular_file(status) &&
      !std::filesystem::is_directory(status))
    return;
  if (!std::ofstream(path_, std::ios::app))
    throw Error(ErrorKind::kUnavailable, name_ + ": cannot be written");
  if (is_new) std::filesystem::remove(std::filesystem::canonical(path_), ignored);  // not a link
}

void OutputFile::write(const std::string& text) const {
  if (!path_.empty()) write_text_file(path_, text, name_);
}

}  // namespace coppice
