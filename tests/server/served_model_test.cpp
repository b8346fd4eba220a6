// What is served of a model: its chat template from a GGUF file or a flag, and the tool format that
// follows from it.
#include "server/served_model.h"

#include <gtest/gtest.h>

#include "tests/io/support/files.h"
#include "tests/io/support/gguf_builder.h"

namespace coppice {
namespace {

using test::GgufBuilder;
using test::raw;
using test::TempDir;
using test::write_file;

constexpr std::uint32_t kU32 = 4;

const std::string kPlain =
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}{% endfor "
    "%}";
const std::string kHermes =
    "{% if tools %}Use <tool_call>\n{\"name\": N, \"arguments\": A}\n</tool_call>{% endif %}" +
    kPlain;
const std::string kLlama =
    "{% if tools %}Write {\"name\": function name, \"parameters\": dictionary of argument name and "
    "its value}.{% endif %}" +
    kPlain;

std::string gguf(const std::string& chat_template, bool has_tag = false,
                 const std::string& pre = "smollm", std::optional<bool> add_bos = {}) {
  GgufBuilder builder;
  constexpr std::uint32_t kBool = 7;
  if (add_bos) builder.key("tokenizer.ggml.add_bos_token", kBool, raw(*add_bos));
  builder.string("general.architecture", "llama")
      .string("tokenizer.ggml.model", "gpt2")
      .string("tokenizer.ggml.pre", pre)
      .strings("tokenizer.ggml.tokens",
               {"a", "b", "ab", "<s>", "</s>", has_tag ? "<tool_call>" : "c"})
      .strings("tokenizer.ggml.merges", {"a b"})
      .key("tokenizer.ggml.bos_token_id", kU32, raw<std::uint32_t>(3))
      .key("tokenizer.ggml.eos_token_id", kU32, raw<std::uint32_t>(4));
  std::string types = raw<std::uint32_t>(5) + raw<std::uint64_t>(6);
  for (const std::int32_t type : {1, 1, 1, 3, 3, has_tag ? 4 : 1}) types += raw(type);
  builder.key("tokenizer.ggml.token_type", 9, types);
  if (!chat_template.empty()) builder.string("tokenizer.chat_template", chat_template);
  return builder.build();
}

class ServedModelTest : public ::testing::Test {
 protected:
  std::unique_ptr<ServedModel> load(const std::string& content,
                                    const ServedModelOptions& options = {}) {
    const std::string path = folder_.path() / "m.gguf";
    write_file(path, content);
    return ServedModel::load(options, path);
  }
  static std::string rendered(const ServedModel& model) {
    ChatInput input;
    input.messages = Json::array({Json::object({{"role", "user"}, {"content", "ab"}})});
    input.kwargs = Json::object();
    return model.chat_template->render(input).text();
  }
  TempDir folder_;
};

TEST_F(ServedModelTest, ChatTemplateOfAGgufFile) {
  EXPECT_EQ(rendered(*load(gguf(kPlain))), "<s>[user] ab</s>");
  EXPECT_FALSE(load(gguf(""))->chat_template) << "a base model";
}

// llama.cpp's rule: what the file says, else what goes with its pre-tokenizer.
TEST_F(ServedModelTest, RawPromptsOfAGgufFileBeginAsItSays) {
  const auto prompt = [&](const char* pre, std::optional<bool> add_bos) {
    return load(gguf("", false, pre, add_bos))->tokenizer.encode_prompt("ab");
  };
  using Ids = std::vector<std::int32_t>;
  EXPECT_EQ(prompt("smollm", {}), Ids{2});
  EXPECT_EQ(prompt("smollm", true), (Ids{3, 2}));
  EXPECT_EQ(prompt("llama-bpe", {}), (Ids{3, 2}));
  EXPECT_EQ(prompt("llama-bpe", false), Ids{2});
}

// The flag, a file or the text itself, stands above what the model brings.
TEST_F(ServedModelTest, TheFlagBeatsTheModelsTemplate) {
  EXPECT_EQ(rendered(*load(gguf(kPlain), {.chat_template = "{{ messages[0].content }}!"})), "ab!");
  const std::string file = folder_.path() / "own.jinja";
  write_file(file, "file: {{ messages[0].content }}");
  EXPECT_EQ(rendered(*load(gguf(""), {.chat_template = file})), "file: ab");
}

TEST_F(ServedModelTest, ToolFormatFollowsFromTheTemplateUnlessItIsGiven) {
  const auto format = [&](const std::string& content, const ServedModelOptions& options = {}) {
    return load(content, options)->tools.format;
  };
  EXPECT_EQ(format(gguf(kPlain)), ToolFormat::kNone);
  EXPECT_EQ(format(gguf(kHermes)), ToolFormat::kHermes);
  EXPECT_EQ(format(gguf(kLlama)), ToolFormat::kJson);
  EXPECT_FALSE(load(gguf(kHermes))->tools.tags_are_tokens);
  EXPECT_TRUE(load(gguf(kHermes, true))->tools.tags_are_tokens);
  EXPECT_EQ(format(gguf(kHermes), {.tool_call_parser = "none"}), ToolFormat::kNone);
  EXPECT_EQ(format(gguf(kPlain), {.tool_call_parser = "qwen3"}), ToolFormat::kHermes);
  EXPECT_THROW(format(gguf(kPlain), {.tool_call_parser = "kimi_k2"}), Error) << "no such marks";
  EXPECT_THROW(format(gguf(kPlain), {.tool_call_parser = "pythonic"}), Error);
  EXPECT_THROW(load(gguf(kPlain), {.reasoning_parser = "qwen3"}), Error) << "no </think>";
}

}  // namespace
}  // namespace coppice
