// Raw prompts of a model whose tokenizer puts BOS in front: the shipped weights behind a vocabulary
// of bytes.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/io/support/files.h"
#include "tests/server/support/api_client.h"
#include "tests/server/support/tiny_server.h"
#include "tests/text/support/byte_tokenizer.h"

namespace coppice {
namespace {

namespace fs = std::filesystem;
using testing::ask;
using testing::dig;
using testing::text_at;

constexpr std::int64_t kBos = 256;

void write_model(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator("models/tiny-k2")) {
    const fs::path name = entry.path().filename();
    if (name != "tiktoken.model" && name != "tokenizer_config.json")
      fs::create_symlink(fs::absolute(entry.path()), folder / name);
  }
  Json document = test::byte_tokenizer_json({"<bos>"});
  document["post_processor"] = parse_json(
      R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<bos>","type_id":0}},)"
      R"({"Sequence":{"id":"A","type_id":0}}],"special_tokens":{"<bos>":{"ids":[256]}}})",
      "post_processor");
  std::ofstream(folder / "tokenizer.json") << write_json(document);
  std::ofstream(folder / "tokenizer_config.json") << R"({"bos_token":"<bos>"})";
}

TEST(RawPromptTest, BeginWithBosUnlessTheRequestSaysNo) {
  if (!testing::has_tiny_model()) GTEST_SKIP() << "models/tiny-k2 is absent";
  const test::TempDir folder;
  write_model(folder.path());
  ServerOptions options = testing::tiny_options();
  options.engine.model = folder.path();
  options.engine.speculative = {};
  options.engine.speculative_model.clear();
  const auto server = testing::start_tiny(options);
  const auto post = [&](const char* path, const std::string& body) {
    return ask(server->port(), "POST", path, "{" + body + "}").json();
  };
  const auto prompt_tokens = [&](const char* path, const std::string& body) {
    const Json answer = post(path, body + R"(,"max_tokens":2,"temperature":0)");
    return dig(answer, "usage", "prompt_tokens").as_int();
  };
  EXPECT_EQ(prompt_tokens("/v1/completions", R"("prompt":"abc")"), 4);
  EXPECT_EQ(prompt_tokens("/v1/completions", R"("prompt":["abc","de"])"), 7);
  EXPECT_EQ(prompt_tokens("/v1/completions", R"("prompt":"abc","add_special_tokens":false)"), 3);
  EXPECT_EQ(prompt_tokens("/v1/completions", R"("prompt":[97,98,99])"), 3) << "ids are as they are";
  const Json echo =
      post("/v1/completions", R"("prompt":"abc","echo":true,"max_tokens":1,"logprobs":1)");
  EXPECT_TRUE(text_at(dig(echo, "choices", 0, "text")).starts_with("abc"));
  EXPECT_EQ(text_at(dig(echo, "choices", 0, "logprobs", "tokens", 0)), "<bos>");

  // A chat's template writes what is wanted.
  const std::string chat = R"("messages":[{"role":"user","content":"Hi"}])";
  const std::int64_t plain = prompt_tokens("/v1/chat/completions", chat);
  EXPECT_EQ(prompt_tokens("/v1/chat/completions", chat + R"(,"add_special_tokens":true)"),
            plain + 1);

  const auto ids = [&](const std::string& body) {
    return write_json(dig(post("/tokenize", body), "tokens"));
  };
  EXPECT_EQ(ids(R"("prompt":"ab")"), "[256,97,98]");
  EXPECT_EQ(ids(R"("prompt":"ab","add_special_tokens":false)"), "[97,98]");
  EXPECT_EQ(ids(R"("content":"ab")"), "[97,98]") << "llama.cpp's request";
  EXPECT_EQ(ids(R"("content":"ab","add_special":true)"), "[256,97,98]");
  EXPECT_EQ(dig(post("/tokenize", chat), "count").as_int(), plain);
  const Json info = ask(server->port(), "GET", "/tokenizer_info").json();
  EXPECT_EQ(text_at(dig(info, "bos_token")), "<bos>");
  EXPECT_EQ(dig(post("/tokenize", R"("prompt":"")"), "tokens", 0).as_int(), kBos);
}

}  // namespace
}  // namespace coppice
