// The text files of a model folder when they are something else, and the control tokens of other
// families than Kimi's.
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "io/json.h"
#include "tests/text/support/byte_tokenizer.h"
#include "tests/text/support/oracle.h"
#include "text/chat_template.h"
#include "text/output_marks.h"
#include "text/tokenizer.h"

namespace coppice {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;

struct Other {
  std::string content, words;
};
const std::vector<Other> kOthers = {
    {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "a Git LFS pointer"},
    {"<!DOCTYPE html><html></html>", "an HTML page"},
    {std::string("\x1f\x8b\x08\0\0", 5), "gzip data"},
    {"", "an empty file"}};

template <typename Load>
void expect_refused(const fs::path& file, const Load& load) {
  for (const auto& [content, words] : kOthers) {
    std::ofstream(file, std::ios::binary) << content;
    try {
      load();
      ADD_FAILURE() << file << " was accepted as " << words;
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_EQ(error.kind(), ErrorKind::kBadFile) << message;
      EXPECT_EQ(message.find(file.string()), 0u) << message;
      EXPECT_NE(message.find(words), std::string::npos) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
  }
}

TEST(ModelTextFiles, FilesThatAreSomethingElseAreNamed) {
  for (const char* name : {"tiktoken.model", "tokenizer_config.json"}) {
    const test::TemporaryFolder folder;
    fs::copy(test::tiny_k2_folder(), folder.path());
    fs::permissions(folder.path() / name, fs::perms::owner_write, fs::perm_options::add);
    expect_refused(folder.path() / name, [&] { Tokenizer::from_folder(folder.path()); });
  }
  const test::TemporaryFolder folder;
  expect_refused(folder.path() / "tokenizer.json", [&] { Tokenizer::from_folder(folder.path()); });
  expect_refused(folder.path() / "chat_template.jinja",
                 [&] { ChatTemplate::from_folder(folder.path()); });
  EXPECT_THROW(ChatTemplate::from_file_text("hi \xff\xfe", "file", {}), Error);
}

// A byte-level vocabulary of the 256 bytes and these added tokens, some of them not "special".
Tokenizer make_tokenizer(const fs::path& folder, const std::vector<std::string>& added) {
  std::ofstream(folder / "tokenizer.json") << write_json(test::byte_tokenizer_json(added));
  return Tokenizer::from_folder(folder);
}

TEST(ModelTextFiles, ControlTokensOfEveryFamilyStayPlainInText) {
  const std::vector<std::vector<std::string>> families = {
      {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|vision_start|>",
       "<tool_call>", "</tool_call>", "<tool_response>", "</think>", "<think>", "<|fim_prefix|>"},
      {"<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
       "<|eot_id|>", "<|eom_id|>", "<|python_tag|>", "<|reserved_special_token_0|>"}};
  for (const std::vector<std::string>& added : families) {
    const test::TemporaryFolder folder;
    const Tokenizer tokenizer = make_tokenizer(folder.path(), added);
    ASSERT_EQ(tokenizer.added_tokens().size(), added.size());
    for (const AddedToken& token : tokenizer.added_tokens()) {
      for (const std::string& text :
           {token.text, "a " + token.text + "b", token.text + token.text}) {
        const Ids ids = tokenizer.encode(text);
        EXPECT_EQ(ids.size(), text.size());  // its bytes
        for (const std::int32_t id : ids) ASSERT_FALSE(tokenizer.is_added(id)) << text;
        EXPECT_EQ(tokenizer.decode(ids), text);
      }
      EXPECT_EQ(tokenizer.encode(token.text, true), Ids{token.id});
      // Nothing is added between tokens when they are decoded together.
      const Ids mixed = {token.id, token.id, 104, 105, token.id};
      EXPECT_EQ(tokenizer.decode(mixed), token.text + token.text + "hi" + token.text);
    }
  }
}

// What stands in front of a raw prompt, by what tokenizer.json and tokenizer_config.json say.
TEST(ModelTextFiles, RawPromptsBeginAsTheTokenizerSays) {
  const test::TemporaryFolder folder;
  make_tokenizer(folder.path(), {"<bos>", "<eos>"});
  const fs::path file = folder.path() / "tokenizer.json",
                 config = folder.path() / "tokenizer_config.json";
  const Json plain = read_json_file(file);
  const auto prefix = [&](const std::string& processor, const std::string& settings = "") {
    Json document = plain;
    if (!processor.empty()) document["post_processor"] = parse_json(processor, "processor");
    std::ofstream(file) << write_json(document);
    fs::remove(config);
    if (!settings.empty()) std::ofstream(config) << settings;
    const Tokenizer tokenizer = Tokenizer::from_folder(folder.path());
    const Ids found(tokenizer.prompt_prefix().begin(), tokenizer.prompt_prefix().end());
    Ids whole = found;
    for (const std::int32_t id : tokenizer.encode("hi")) whole.push_back(id);
    EXPECT_EQ(tokenizer.encode_prompt("hi"), whole);
    EXPECT_EQ(tokenizer.encode("hi").size(), 2u);
    return found;
  };
  const std::string names =
      R"("special_tokens":{"<bos>":{"id":"<bos>","ids":[256]},"<eos>":{"id":"<eos>","ids":[257]}}})";
  const std::string bos = R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<bos>",)"
                          R"("type_id":0}},{"Sequence":{"id":"A","type_id":0}}],)" +
                          names;
  const std::string behind =
      R"({"type":"TemplateProcessing","single":[{"Sequence":{"id":"A","type_id":0}},)"
      R"({"SpecialToken":{"id":"<eos>","type_id":0}}],)" +
      names;
  const std::string bytes = R"({"type":"ByteLevel","trim_offsets":false})";
  EXPECT_EQ(prefix(""), Ids{});
  EXPECT_EQ(prefix(bytes), Ids{});
  EXPECT_EQ(prefix(bos), Ids{256});
  EXPECT_EQ(prefix(R"({"type":"Sequence","processors":[)" + bytes + "," + bos + "]}"), Ids{256});
  EXPECT_THROW(prefix(behind), Error) << "a prompt that ends before the model goes on";
  EXPECT_THROW(prefix(R"({"type":"BertProcessing"})"), Error);
  // Llama's classes build their own; others' flag is not read.
  const auto settings = [](const char* name, const char* add) {
    return std::string(R"({"bos_token":{"content":"<bos>"},"tokenizer_class":")") + name +
           R"(","add_bos_token":)" + add + "}";
  };
  EXPECT_EQ(prefix(bytes, settings("LlamaTokenizerFast", "true")), Ids{256});
  EXPECT_EQ(prefix(bos, settings("LlamaTokenizer", "false")), Ids{});
  EXPECT_EQ(prefix(bos, settings("PreTrainedTokenizerFast", "false")), Ids{256});
  EXPECT_EQ(prefix(bytes, settings("Qwen2Tokenizer", "true")), Ids{});
  EXPECT_THROW(prefix(bytes, R"({"bos_token":"<s>","tokenizer_class":"LlamaTokenizer",)"
                             R"("add_bos_token":true})"),
               Error);
}

// Special tokens may be hidden before the parsers see them: the marks must not be among them.
TEST(ModelTextFiles, MarksOfTheOutputFormatAreNotSpecial) {
  std::vector<fs::path> folders = {test::tiny_k2_folder()};
  const fs::path real = test::shared_folder() / "data/kimi-k2.5";
  if (fs::exists(real)) folders.push_back(real);
  for (const fs::path& folder : folders) {
    const Tokenizer tokenizer = Tokenizer::from_folder(folder);
    int marks = 0;
    for (const AddedToken& token : tokenizer.added_tokens()) {
      if (mark_of({token.text, true}) == OutputMark::kNone) continue;
      ++marks;
      EXPECT_FALSE(tokenizer.is_special(token.id)) << token.text;
      EXPECT_EQ(tokenizer.encode(token.text, true), Ids{token.id});
    }
    EXPECT_EQ(marks, 7) << folder;
  }
}

TEST(ModelTextFiles, EveryIdOfTheRealKimiVocabularyDecodes) {
  const fs::path folder = test::shared_folder() / "data/kimi-k2.5";
  if (!fs::exists(folder)) GTEST_SKIP() << "no real tokenizer files in " << folder;
  const Tokenizer kimi = Tokenizer::from_folder(folder);
  for (std::int32_t id = 0; id < kimi.vocab_size(); ++id) {
    const std::string text = kimi.decode(Ids{id});
    ASSERT_FALSE(text.empty()) << id;
    if (kimi.is_added(id)) {
      ASSERT_EQ(kimi.encode(text, true), Ids{id});
    }
  }
  for (const std::int32_t id : {kimi.vocab_size(), INT32_MAX, -1})
    EXPECT_EQ(kimi.decode(Ids{id}), "");
}

}  // namespace
}  // namespace coppice
