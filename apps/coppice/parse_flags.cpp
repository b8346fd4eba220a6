#include "parse_flags.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "server/command_line.h"

namespace coppice {
namespace {

bool looks_like_flag(const std::string& argument) {
  return argument.size() > 1 && argument[0] == '-' &&
         std::isdigit(static_cast<unsigned char>(argument[1])) == 0 && argument[1] != '.';
}

// CLI11's text for a missing argument reads "in is required".
std::string one_line(std::string message) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  return message;
}

}  // namespace

void refuse_bad_values(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const bool integer = option->get_type_name().starts_with("INT");
    const bool real = option->get_type_name().starts_with("FLOAT");
    const auto fail = [&](const std::string& cause) {
      throw Error(ErrorKind::kInvalidArgument, option->get_name() + ": " + cause);
    };
    for (const std::string& text : option->results()) {
      if (text.starts_with("--") && app.get_option_no_throw(text) != nullptr)
        fail("needs a value, but the flag " + text + " follows");
      errno = 0;
      if (integer && (std::strtoll(text.c_str(), nullptr, 10), errno == ERANGE))
        fail(text + " does not fit 64 bits");
      if (real && std::isnan(std::strtod(text.c_str(), nullptr))) fail("is not a number");
    }
  }
  for (const CLI::App* verb : app.get_subcommands()) refuse_bad_values(*verb);
}

std::optional<UnknownFlag> find_unknown(const CLI::App& app,
                                        const std::vector<std::string>& arguments) {
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    for (const std::string& name : option->get_snames()) known.push_back("-" + name);
  }
  for (const std::string& argument : arguments) {
    if (!looks_like_flag(argument)) continue;
    const std::string flag = argument.substr(0, argument.find('='));
    if (std::find(known.begin(), known.end(), flag) != known.end()) continue;
    return UnknownFlag{.name = flag, .closest = closest_flag(flag, known)};
  }
  return std::nullopt;
}

void refuse(const CLI::App& app, const CLI::ParseError& error,
            const std::vector<std::string>& arguments) {
  // A flag that nobody knows may be why another is missing.
  const bool may_be_unknown = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
                              dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  const auto unknown =
      may_be_unknown && !app.get_allow_extras() ? find_unknown(app, arguments) : std::nullopt;
  if (!unknown) throw Error(ErrorKind::kInvalidArgument, one_line(error.what()));
  throw Error(ErrorKind::kInvalidArgument,
              "unknown flag " + unknown->name +
                  (unknown->closest.empty() ? "; " + app.get_name() + " --help lists all"
                                            : "; did you mean " + unknown->closest + "?"));
}

std::optional<int> parse_flags(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    refuse_bad_values(app);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    const CLI::App* used = &app;
    if (!app.get_subcommands().empty()) used = app.get_subcommands().front();
    refuse(*used, error, {argv + 1, argv + argc});
  }
  return std::nullopt;
}

}  // namespace coppice
