#include "server/command_line.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace coppice {
namespace {

using Strings = std::vector<std::string>;

TEST(CommandLineTest, GuideOfKimiK25ForVllm) {
  const NormalizedArguments got = normalize_arguments(
      {"/models/K2.5", "-tp", "8", "--mm-encoder-tp-mode", "data", "--trust-remote-code",
       "--tool-call-parser", "kimi_k2", "--reasoning-parser", "kimi_k2"});
  EXPECT_EQ(got.arguments,
            (Strings{"/models/K2.5", "--tensor-parallel-size", "8", "--tool-call-parser", "kimi_k2",
                     "--reasoning-parser", "kimi_k2"}));
  EXPECT_EQ(got.warnings.size(), 2U);
}

TEST(CommandLineTest, GuideOfKimiK25ForSglang) {
  const NormalizedArguments got =
      normalize_arguments({"--model-path", "/models/K2.5", "--tp", "8", "--trust-remote-code",
                           "--tool_call_parser=kimi_k2", "--reasoning-parser", "kimi_k2"});
  EXPECT_EQ(got.arguments,
            (Strings{"--model", "/models/K2.5", "--tensor-parallel-size", "8", "--tool-call-parser",
                     "kimi_k2", "--reasoning-parser", "kimi_k2"}));
}

TEST(CommandLineTest, DottedFlagsBecomeJson) {
  const NormalizedArguments got = normalize_arguments(
      {"m", "--speculative-config.method", "ddtree", "--speculative-config.ddtree-size=64"});
  EXPECT_EQ(got.arguments,
            (Strings{"m", "--speculative-config", R"({"method":"ddtree","ddtree_size":64})"}));
}

TEST(CommandLineTest, ValuesThatLookLikeFlagsStay) {
  EXPECT_EQ(normalize_arguments({"--seed", "-1", "--no-such_flag"}).arguments,
            (Strings{"--seed", "-1", "--no-such-flag"}));
}

TEST(CommandLineTest, SuggestsTheClosestFlag) {
  const Strings known = {"--max-model-len", "--max-num-seqs", "--port"};
  EXPECT_EQ(closest_flag("--max-model-length", known), "--max-model-len");
  EXPECT_EQ(closest_flag("--prot", known), "--port");
  EXPECT_EQ(closest_flag("--something-else-entirely", known), "");
}

TEST(CommandLineTest, HumanIntegers) {
  EXPECT_EQ(parse_human_integer("4096", "--x"), 4096);
  EXPECT_EQ(parse_human_integer("4k", "--x"), 4000);
  EXPECT_EQ(parse_human_integer("4K", "--x"), 4096);
  EXPECT_EQ(parse_human_integer("1.5m", "--x"), 1500000);
  for (const char* bad : {"", "k", "4x", "1.5", "-3", "nan", "1e30"})
    EXPECT_THROW(parse_human_integer(bad, "--x"), Error) << bad;
}

TEST(CommandLineTest, SwitchesThatAreOff) {
  const NormalizedArguments got = normalize_arguments(
      {"--no-disable_cuda_graph", "--no-trust-remote-code", "--no-enable-prefix-caching"});
  EXPECT_EQ(got.arguments, (Strings{"--no-enforce-eager", "--no-enable-prefix-caching"}));
  EXPECT_TRUE(got.warnings.empty());
}

TEST(CommandLineTest, ConfigFiles) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("coppice_config_" + std::to_string(getpid()) + ".yaml");
  const auto read = [&](const char* text) {
    std::ofstream(path) << text;
    return read_config_file(path.string());
  };
  EXPECT_EQ(
      read("# a comment\nport: 8001  # here too\nserved-model-name: [a, 'b c']\n"
           "enable-log-requests: true\ndisable-log-stats: false\napi-key:\n  - one\n  - two\n"),
      (Strings{"--port", "8001", "--served-model-name", "a", "b c", "--enable-log-requests",
               "--no-disable-log-stats", "--api-key", "one", "two"}));
  EXPECT_EQ(read("\xef\xbb\xbf\"port\": 1\r\nserved_model_name: [a, \"b, c\", 'd']\nseed: ~\n"
                 "enable-log-requests: True\nquiet: Yes\nenable-prefix-caching: off\n...\n"),
            (Strings{"--port", "1", "--served-model-name", "a", "b, c", "d",
                     "--enable-log-requests", "--quiet", "--no-enable-prefix-caching"}));
  EXPECT_THROW(read("max-num-seqs: 1\nmax_num_seqs: 2\n"), Error) << "one key in two spellings";
  EXPECT_THROW(read("a:\n  b: 1\n"), Error);
  EXPECT_THROW(read("just words\n"), Error);
  EXPECT_THROW(read("port: 1\nseed: 2\nport: 3\n"), Error);
  EXPECT_THROW(read("config: other.yaml\n"), Error);
  std::filesystem::remove(path);
  EXPECT_THROW(read_config_file(path.string()), Error);
}

}  // namespace
}  // namespace coppice
