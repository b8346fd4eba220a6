// The one exception type of Coppice: what a file, a flag, a request or the machine caused.
// The message is one line that names the file or field and the cause.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <utility>

namespace coppice {

enum class ErrorKind {
  kInvalidArgument,  // a flag or a request field: exit 2, HTTP 400
  kBadFile,          // a checkpoint, tokenizer or config is damaged: exit 3
  kNotFound,         // a file or model is absent: exit 4, HTTP 404
  kUnsupported,      // a known format or model that Coppice does not run: exit 5, HTTP 501
  kOutOfMemory,      // does not fit; the message has the numbers: exit 6
  kUnavailable,      // queue full, shutting down, device lost: exit 7, HTTP 503
};

// Copies share the message and never throw. They may live and end on different threads: the count
// of the shared_ptr orders that for ThreadSanitizer too, that of std::runtime_error's string (in
// libstdc++.so, unseen by it) does not.
class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string message)
      : message_(std::make_shared<const std::string>(std::move(message))), kind_(kind) {}
  // No move: a moved-from Error would have no message.
  Error(const Error&) = default;
  Error& operator=(const Error&) = default;
  const char* what() const noexcept override { return message_->c_str(); }
  ErrorKind kind() const { return kind_; }

 private:
  std::shared_ptr<const std::string> message_;
  ErrorKind kind_;
};

// The process exit code of an error, as documented in README.md.
int exit_code(ErrorKind kind);

}  // namespace coppice
