// printf into a string.
#pragma once

#include <string>

namespace coppice {

[[gnu::format(printf, 1, 2)]] std::string print(const char* format, ...);

}  // namespace coppice
