#include "parse_flags.h"

#include "base/error.h"

namespace coppice {

std::optional<int> parse_flags(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    throw Error(ErrorKind::kInvalidArgument, error.what());
  }
  return std::nullopt;
}

}  // namespace coppice
