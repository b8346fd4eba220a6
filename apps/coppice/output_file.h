// A file of results that a flag names.
#pragma once

#include <string>

namespace coppice {

class OutputFile {
 public:
  // `flag`: for messages. An empty path writes nothing. Throws Error(kUnavailable)
  // where the file cannot be written: before the work whose results it shall hold. What is there
  // stays until write().
  OutputFile(const std::string& flag, std::string path);

  // Replaces what is there, so that work that goes on may write again what it has. Throws as above.
  void write(const std::string& text) const;

  const std::string& path() const { return path_; }

 private:
  std::string name_, path_;
};

}  // namespace coppice
