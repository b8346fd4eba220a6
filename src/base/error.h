// The one exception type of Coppice: what a file, a flag, a request or the machine caused.
// The message is one line that names the file or field and the cause.
#pragma once

#include <stdexcept>
#include <string>

namespace coppice {

enum class ErrorKind {
  kInvalidArgument,  // a flag or a request field: exit 2, HTTP 400
  kBadFile,          // a checkpoint, tokenizer or config is damaged: exit 3
  kNotFound,         // a file or model is absent: exit 4, HTTP 404
  kUnsupported,      // a known format or model that Coppice does not run: exit 5, HTTP 501
  kOutOfMemory,      // does not fit; the message has the numbers: exit 6
  kUnavailable,      // queue full, shutting down, device lost: exit 7, HTTP 503
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

// The process exit code of an error, as documented in README.md.
int exit_code(ErrorKind kind);

}  // namespace coppice
