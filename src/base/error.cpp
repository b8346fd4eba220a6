#include "base/error.h"

namespace coppice {

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
      return 2;
    case ErrorKind::kBadFile:
      return 3;
    case ErrorKind::kNotFound:
      return 4;
    case ErrorKind::kUnsupported:
      return 5;
    case ErrorKind::kOutOfMemory:
      return 6;
    case ErrorKind::kUnavailable:
      return 7;
  }
  return 1;
}

}  // namespace coppice
