// How every verb reads its command line: one line and exit code 2 for what is wrong with it.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

namespace coppice {

// An exit code when there is nothing more to do (--help was printed). Throws
// Error(kInvalidArgument) naming the flag.
std::optional<int> parse_flags(CLI::App& app, int argc, char** argv);

// Integers that do not fit 64 bits, where CLI11 takes the nearest that does, NaN, which every range
// lets through, and flags that stand where a value is missing.
void refuse_bad_values(const CLI::App& app);

struct UnknownFlag {
  std::string name;     // "--prot"
  std::string closest;  // "--port"; empty: none is close
};
// The first of the arguments that looks like a flag and is none of the app's.
std::optional<UnknownFlag> find_unknown(const CLI::App& app,
                                        const std::vector<std::string>& arguments);

// Throws for the first of the arguments that looks like a flag and is none of the app's, with the
// closest known one; without such, for what CLI11 found.
[[noreturn]] void refuse(const CLI::App& app, const CLI::ParseError& error,
                         const std::vector<std::string>& arguments);

}  // namespace coppice
