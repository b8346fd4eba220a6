// Checks for programmer mistakes. A failed check prints file, line, the expression and both values,
// then aborts. What a file, a flag or a request can cause is never a check: throw coppice::Error
// (base/error.h).
#pragma once

#include <sstream>
#include <string>

namespace coppice {

[[noreturn]] void check_failed(const char* file, int line, const char* expression,
                               const std::string& detail);

namespace detail {
template <typename... Args>
std::string concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}
}  // namespace detail

}  // namespace coppice

// COPPICE_CHECK(condition, "what", value, ...): the further arguments are streamed into the
// message.
#define COPPICE_CHECK(condition, ...)                                                    \
  do {                                                                                   \
    if (!(condition)) [[unlikely]]                                                       \
      ::coppice::check_failed(__FILE__, __LINE__, #condition,                            \
                              ::coppice::detail::concat("" __VA_OPT__(, ) __VA_ARGS__)); \
  } while (false)

#define COPPICE_CHECK_OP(a, op, b)                                                       \
  do {                                                                                   \
    const auto check_a = (a);                                                            \
    const auto check_b = (b);                                                            \
    if (!(check_a op check_b)) [[unlikely]]                                              \
      ::coppice::check_failed(__FILE__, __LINE__, #a " " #op " " #b,                     \
                              ::coppice::detail::concat(check_a, " against ", check_b)); \
  } while (false)

#define COPPICE_CHECK_EQ(a, b) COPPICE_CHECK_OP(a, ==, b)
#define COPPICE_CHECK_LT(a, b) COPPICE_CHECK_OP(a, <, b)
#define COPPICE_CHECK_LE(a, b) COPPICE_CHECK_OP(a, <=, b)
#define COPPICE_CHECK_GE(a, b) COPPICE_CHECK_OP(a, >=, b)
