#include "io/model_path.h"

#include <cstdlib>

#include "tests/io/support/files.h"

namespace coppice {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::expect_contains;

TEST(ModelPath, ExistingPathsWin) {
  const test::TempDir dir;
  EXPECT_EQ(resolve_model(dir.path().string(), "/none"), dir.path());
}

TEST(ModelPath, HubIdsResolveToSnapshots) {
  const test::TempDir dir;
  const fs::path repository = dir / "models--moonshotai--Kimi-K2.6";
  fs::create_directories(repository / "refs");
  fs::create_directories(repository / "snapshots" / "abc123");
  test::write_file(repository / "refs" / "main", "abc123");
  const fs::path snapshot = repository / "snapshots" / "abc123";
  EXPECT_EQ(resolve_model("moonshotai/Kimi-K2.6", dir.path()), snapshot);
  EXPECT_EQ(resolve_model("moonshotai/Kimi-K2.6@abc123", dir.path()), snapshot);
  const auto refuse = [&](const std::string& model) {
    return error_of(ErrorKind::kNotFound, [&] { resolve_model(model, dir.path()); });
  };
  expect_contains(refuse("moonshotai/Kimi-K2.5"),
                  {"moonshotai/Kimi-K2.5", "fetch it with: hf download moonshotai/Kimi-K2.5"});
  expect_contains(refuse("moonshotai/Kimi-K2.6@v2"),
                  {"hf download moonshotai/Kimi-K2.6 --revision v2"});
  for (const char* bad : {"", "/models/none", "../x", "a/b/c", "a/..", "a/", "name", "a/b@../c"})
    expect_contains(refuse(bad), {"no such file or folder, and no hub id"});
  test::write_file(repository / "refs" / "main", "../../../etc");
  expect_contains(refuse("moonshotai/Kimi-K2.6"), {"fetch it with"});
}

TEST(ModelPath, CacheFollowsTheEnvironment) {
  for (const char* name : {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"}) unsetenv(name);
  setenv("HOME", "/h", 1);
  EXPECT_EQ(hub_cache_from_environment(), "/h/.cache/huggingface/hub");
  setenv("XDG_CACHE_HOME", "/x", 1);
  EXPECT_EQ(hub_cache_from_environment(), "/x/huggingface/hub");
  setenv("HF_HOME", "/m", 1);
  EXPECT_EQ(hub_cache_from_environment(), "/m/hub");
  setenv("HF_HUB_CACHE", "/c", 1);
  EXPECT_EQ(hub_cache_from_environment(), "/c");
}

}  // namespace
}  // namespace coppice
