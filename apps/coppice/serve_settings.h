// Where the flags of coppice serve come from besides the command line: the environment and the
// --config file. Flags beat the environment, the environment beats the file.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "server/command_line.h"

namespace coppice {

// COPPICE_MAX_NUM_SEQS stands for --max-num-seqs, and so for every flag of the app.
void read_environment(CLI::App& app);

// Logs the variables that are none of ours and look much like one that is.
void warn_of_unknown_variables(const CLI::App& app);

// Where "--x" is a flag and "--no-x" is none, "--no-x" says what holds anyway: switches are off.
void drop_idle_negations(const CLI::App& app, std::vector<std::string>& arguments);

// Takes --config out and puts the file's flags, but for those that are set elsewhere, in front: of
// two, the later counts. Throws Error naming the file and the key.
void add_config_file(const CLI::App& app, NormalizedArguments& given);

}  // namespace coppice
