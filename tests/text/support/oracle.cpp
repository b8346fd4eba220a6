#include "tests/text/support/oracle.h"

#include <unistd.h>

#include <cstdlib>

#include "tests/support/source_dir.h"

namespace coppice::test {
namespace fs = std::filesystem;

TemporaryFolder::TemporaryFolder() {
  std::string name = (fs::temp_directory_path() / "coppice-test-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) std::abort();
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

fs::path source_folder() {
  return testing::source_dir();
}

fs::path shared_folder() {
  const char* named = std::getenv("COPPICE_SHARED");
  return named != nullptr ? fs::path(named) : source_folder().parent_path() / "shared";
}

fs::path tiny_k2_folder() {
  const fs::path shipped = source_folder() / "models/tiny-k2";
  return fs::exists(shipped) ? shipped : shared_folder() / "models/tiny-k2";
}

fs::path golden(const std::string& name) {
  return source_folder() / "tests/golden/tiny-k2" / name;
}

std::string oracle_python() {
  const char* named = std::getenv("COPPICE_PYTHON");
  const fs::path python = named != nullptr ? fs::path(named) : source_folder() / ".venv/bin/python";
  return fs::exists(python) ? python.string() : std::string();
}

bool run_oracle(const std::string& script, const std::vector<std::string>& arguments) {
  const auto quoted = [](const std::string& word) { return " '" + word + "'"; };
  std::string command = quoted(oracle_python()) + quoted(source_folder() / "scripts" / script);
  for (const std::string& argument : arguments) command += quoted(argument);
  return std::system(command.c_str()) == 0;
}

}  // namespace coppice::test
