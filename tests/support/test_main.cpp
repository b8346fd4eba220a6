// main() of every test executable: as GoogleTest's own, but 77 where all that ran was skipped, so
// that ctest says so.
#include <gtest/gtest.h>

#include <cstdio>

int main(int argc, char** argv) {
  // In a file too a line stands at once: of a test that is ended, how far it came.
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  ::testing::InitGoogleTest(&argc, argv);
  const int status = RUN_ALL_TESTS();
  const ::testing::UnitTest& unit = *::testing::UnitTest::GetInstance();
  const bool all_skipped = unit.skipped_test_count() > 0 && unit.successful_test_count() == 0;
  return status == 0 && all_skipped ? 77 : status;
}
