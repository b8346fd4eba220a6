// Reference results from PyPI packages: scripts/oracle_*.py run in the test virtualenv.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace coppice::test {

// A folder under the system's temporary folder, removed with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::filesystem::path source_folder();
// The folder of shared test data (COPPICE_SHARED, else ../shared beside the source); may not exist.
std::filesystem::path shared_folder();
// The small model that ships with Coppice.
std::filesystem::path tiny_k2_folder();
// tests/golden/tiny-k2/NAME
std::filesystem::path golden(const std::string& name);

// The interpreter with the oracle packages: COPPICE_PYTHON, else .venv/bin/python. Empty if absent.
std::string oracle_python();

// Runs scripts/SCRIPT with the arguments; false when it fails (its output goes to the test's).
bool run_oracle(const std::string& script, const std::vector<std::string>& arguments);

}  // namespace coppice::test

// Ends the test as skipped, visibly, when the virtualenv is absent.
#define COPPICE_NEEDS_ORACLE()                  \
  if (::coppice::test::oracle_python().empty()) \
  GTEST_SKIP() << "no test virtualenv with the reference tokenizers (.venv): make setup"
