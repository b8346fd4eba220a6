// An error with the HTTP status and the field it is about, where ErrorKind is too coarse.
#pragma once

#include <string>

#include "base/error.h"

namespace coppice {

class ApiError : public Error {
 public:
  // param: path of the request field, or "". retry_after_s above 0 becomes a Retry-After header.
  ApiError(int status, const std::string& message, std::string param = "", int retry_after_s = 0)
      : Error(kind_of(status), one_line(message)),
        status_(status),
        param_(std::move(param)),
        retry_after_s_(retry_after_s) {}

  int status() const { return status_; }
  const std::string& param() const { return param_; }
  int retry_after_s() const { return retry_after_s_; }

 private:
  // What a request brought into the message may hold line ends and zeros.
  static std::string one_line(std::string message);

  static ErrorKind kind_of(int status) {
    if (status == 404) return ErrorKind::kNotFound;
    if (status == 501) return ErrorKind::kUnsupported;
    return status >= 500 || status == 429 ? ErrorKind::kUnavailable : ErrorKind::kInvalidArgument;
  }

  int status_;
  std::string param_;
  int retry_after_s_;
};

// Any error as one of these: status from its kind, the field from messages that name one
// ("request body: field 'n': ...", "n is 0: ...").
ApiError to_api_error(const std::exception& error);

}  // namespace coppice
