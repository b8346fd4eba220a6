// The text files of a model folder when they are something else, and the control tokens of other
// families than Kimi's.
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "io/json.h"
#include "tests/text/support/oracle.h"
#include "text/byte_alphabet.h"
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
}

// A byte-level vocabulary of the 256 bytes and these added tokens, some of them not "special".
Tokenizer make_tokenizer(const fs::path& folder, const std::vector<std::string>& added) {
  Json vocabulary = Json::object(), tokens = Json::array();
  for (int byte = 0; byte < 256; ++byte) {
    for (std::uint32_t point = 0; point < 0x200; ++point) {
      std::string spelled;
      if (point < 0x80)
        spelled = static_cast<char>(point);
      else
        spelled = {static_cast<char>(0xc0 | point >> 6), static_cast<char>(0x80 | (point & 0x3f))};
      if (bytes_of_alphabet(spelled) == std::string(1, static_cast<char>(byte)))
        vocabulary[spelled] = Json(byte);
    }
  }
  for (std::size_t i = 0; i < added.size(); ++i)
    tokens.push_back(Json::object({{"id", Json(256 + static_cast<int>(i))},
                                   {"content", Json(added[i])},
                                   {"special", Json(i % 3 != 2)}}));
  Json document = Json::object();
  document["added_tokens"] = tokens;
  document["pre_tokenizer"] =
      Json::object({{"type", "ByteLevel"}, {"add_prefix_space", Json(false)}});
  document["model"] =
      Json::object({{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array()}});
  std::ofstream(folder / "tokenizer.json") << write_json(document);
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
