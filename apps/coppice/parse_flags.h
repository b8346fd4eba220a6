// How a verb reads its command line.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>

namespace coppice {

// Fills what the app's options name. The exit code when the verb ends here, as after --help; else
// nothing. Throws Error(kInvalidArgument) naming the flag.
std::optional<int> parse_flags(CLI::App& app, int argc, char** argv);

}  // namespace coppice
