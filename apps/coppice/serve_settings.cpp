#include "serve_settings.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "parse_flags.h"

namespace coppice {
namespace {

// COPPICE_MAX_NUM_SEQS of max-num-seqs.
std::string variable_of(std::string_view flag) {
  std::string name = "COPPICE_" + std::string(flag);
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return name;
}

// What the environment says of a flag; null: nothing. Kubernetes tells a pod where a service called
// coppice is by COPPICE_PORT=tcp://...: that is no port to listen on.
const char* value_of_variable(std::string_view flag) {
  const char* value = std::getenv(variable_of(flag).c_str());
  const bool is_link = value != nullptr && std::string_view(value).find("://") != std::string::npos;
  return flag == "port" && is_link ? nullptr : value;
}

// "--no-x" of "--x" and the other way round.
std::string opposite(const std::string& flag) {
  return flag.starts_with("--no-") ? "--" + flag.substr(5) : "--no-" + flag.substr(2);
}

// A file's arguments without the flags that are given too or that the environment sets: both beat
// the file.
std::vector<std::string> without_set_flags(const std::vector<std::string>& arguments,
                                           const std::vector<std::string>& given) {
  const auto is_set = [&](const std::string& flag) {
    return value_of_variable(std::string_view(flag).substr(2)) != nullptr ||
           std::find(given.begin(), given.end(), flag) != given.end();
  };
  std::vector<std::string> kept;
  bool dropping = false;
  for (const std::string& argument : arguments) {
    if (argument.starts_with("--")) dropping = is_set(argument) || is_set(opposite(argument));
    if (!dropping) kept.push_back(argument);
  }
  return kept;
}

// A value behind a switch would be taken for the model.
void refuse_values_of_switches(const std::string& path, const CLI::App& app,
                               const std::vector<std::string>& arguments) {
  for (std::size_t i = 0; i + 1 < arguments.size(); ++i) {
    if (!arguments[i].starts_with("--") || arguments[i + 1].starts_with("--")) continue;
    const CLI::Option* option = app.get_option_no_throw(arguments[i]);
    if (option != nullptr && option->get_expected_max() == 0)
      throw Error(ErrorKind::kInvalidArgument, "--config " + path + ": key '" +
                                                   arguments[i].substr(2) + "': '" +
                                                   arguments[i + 1] + "' is not true or false");
  }
}

NormalizedArguments read_config(const std::string& path, const CLI::App& app) {
  NormalizedArguments file = normalize_arguments(read_config_file(path));
  drop_idle_negations(app, file.arguments);
  if (const auto unknown = find_unknown(app, file.arguments))
    throw Error(ErrorKind::kInvalidArgument,
                "--config " + path + ": unknown key '" + unknown->name.substr(2) +
                    (unknown->closest.empty() ? "'; coppice serve --help lists all"
                                              : "'; did you mean " + unknown->closest + "?"));
  refuse_values_of_switches(path, app, file.arguments);
  return file;
}

// The last --config of a command line, or the environment's; taken out of the arguments.
std::string take_config_path(std::vector<std::string>& arguments) {
  const char* variable = std::getenv(variable_of("config").c_str());
  std::string path = variable == nullptr ? "" : variable;
  for (auto at = arguments.begin(); at != arguments.end();) {
    const bool is_pair = *at == "--config" && at + 1 != arguments.end() && !at[1].starts_with("--");
    if (is_pair) path = at[1];
    at = is_pair ? arguments.erase(at, at + 2) : at + 1;
  }
  return path;
}

}  // namespace

void read_environment(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty() || option == app.get_help_ptr()) continue;
    const std::string& flag = option->get_lnames().front();
    if (std::getenv(variable_of(flag).c_str()) == value_of_variable(flag))
      option->envname(variable_of(flag));
  }
}

void warn_of_unknown_variables(const CLI::App& app) {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options())
    if (!option->get_lnames().empty()) known.push_back(variable_of(option->get_lnames().front()));
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string name(*entry, std::strcspn(*entry, "="));
    if (!name.starts_with("COPPICE_") || std::ranges::find(known, name) != known.end()) continue;
    const std::string closest = closest_flag(name, known);
    if (!closest.empty() && std::getenv(closest.c_str()) == nullptr)
      log_warning("the variable " + name + " is not read; did you mean " + closest + "?");
  }
}

void drop_idle_negations(const CLI::App& app, std::vector<std::string>& arguments) {
  std::erase_if(arguments, [&](const std::string& argument) {
    return argument.starts_with("--no-") && app.get_option_no_throw(argument) == nullptr &&
           app.get_option_no_throw(opposite(argument)) != nullptr;
  });
}

void add_config_file(const CLI::App& app, NormalizedArguments& given) {
  std::vector<std::string>& arguments = given.arguments;
  const std::string path = take_config_path(arguments);
  if (path.empty()) return;
  const NormalizedArguments file = read_config(path, app);
  std::vector<std::string> all = without_set_flags(file.arguments, arguments);
  // A model in front of all flags must not be taken for the value of the file's last one.
  const auto flags = std::find_if(arguments.begin(), arguments.end(),
                                  [](const std::string& text) { return text.starts_with('-'); });
  all.insert(all.begin(), arguments.begin(), flags);
  all.insert(all.end(), flags, arguments.end());
  arguments = std::move(all);
  given.warnings.insert(given.warnings.begin(), file.warnings.begin(), file.warnings.end());
}

}  // namespace coppice
