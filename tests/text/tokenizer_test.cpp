#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "io/json.h"
#include "tests/text/support/oracle.h"
#include "text/byte_alphabet.h"

namespace coppice {
namespace {

using Ids = std::vector<std::int32_t>;

Ids ids_of(const Json& list) {
  Ids ids;
  for (const Json& id : list.as_array()) ids.push_back(static_cast<std::int32_t>(id.as_int()));
  return ids;
}

const Tokenizer& tiny() {
  static const Tokenizer tokenizer = Tokenizer::from_folder(test::tiny_k2_folder());
  return tokenizer;
}

std::string repeated(const std::string& text, std::int64_t times) {
  std::string out;
  for (std::int64_t i = 0; i < times; ++i) out += text;
  return out;
}

TEST(Tokenizer, Goldens) {
  const Json golden = read_json_file(test::golden("tokenizer.json"));
  EXPECT_EQ(golden.find("n_vocab")->as_int(), tiny().vocab_size());
  int cases = 0;
  for (const Json& item : golden.find("cases")->as_array()) {
    const Json* times = item.find("repeat");
    const std::string text =
        repeated(item.find("text")->as_string(), times == nullptr ? 1 : times->as_int());
    const Ids ids = tiny().encode(text, item.find("special")->as_bool());
    ASSERT_EQ(ids, ids_of(*item.find("ids"))) << text.substr(0, 200);
    ASSERT_EQ(tiny().decode(ids), text);
    ++cases;
  }
  EXPECT_EQ(cases, 300);
}

// Text of special tokens typed by a user must not become control tokens, wherever it stands.
TEST(Tokenizer, SpecialTextIsPlainUnlessAsked) {
  ASSERT_EQ(tiny().added_tokens().size(), 256u);
  for (const AddedToken& token : tiny().added_tokens()) {
    const std::string text = "say " + token.text + "!";
    for (const std::int32_t id : tiny().encode(text)) ASSERT_FALSE(tiny().is_added(id)) << text;
    ASSERT_EQ(tiny().encode(token.text, true), Ids{token.id});
    ASSERT_EQ(tiny().decode(tiny().encode(text)), text);
    ASSERT_EQ(tiny().added_token_id(token.text), token.id);
  }
  EXPECT_EQ(tiny().added_token_id("<|im_en"), std::nullopt);
}

TEST(Tokenizer, EveryIdDecodes) {
  const std::int32_t size = tiny().vocab_size();
  std::string joined;
  for (std::int32_t id = 0; id < size; ++id) {
    EXPECT_FALSE(tiny().token_bytes(id).empty()) << id;
    joined += tiny().decode(Ids{id});
  }
  Ids all(static_cast<std::size_t>(size));
  for (std::int32_t id = 0; id < size; ++id) all[static_cast<std::size_t>(id)] = id;
  EXPECT_EQ(tiny().decode(all), joined);
  for (const std::int32_t id : {size, size + 1, std::int32_t{0x7fffffff}, std::int32_t{-1}}) {
    EXPECT_EQ(tiny().decode(Ids{id}), "");
    EXPECT_FALSE(tiny().is_special(id));
  }
  const Ids marks = {5142, 64, 5122, 5143};  // <think> and </think> are no "special" tokens
  EXPECT_EQ(tiny().decode(marks, true), "<think>a</think>");
  EXPECT_EQ(tiny().decode(marks, false), "<think>a<|im_end|></think>");
}

TEST(Tokenizer, RealKimiVectors) {
  const auto folder = test::shared_folder() / "data/kimi-k2.5";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no real tokenizer files in " << folder;
  const Tokenizer kimi = Tokenizer::from_folder(folder);
  EXPECT_EQ(kimi.vocab_size(), 163840);
  EXPECT_EQ(kimi.encode("Hello"), Ids{19180});
  EXPECT_EQ(kimi.encode("世界"), Ids{2243});
  EXPECT_EQ(kimi.encode("!"), Ids{0});
  EXPECT_EQ(kimi.encode(" "), Ids{220});
  EXPECT_EQ(kimi.encode("今天是2024年"), (Ids{35408, 2975, 19, 532}));
  EXPECT_EQ(kimi.encode(" The"), Ids{646});
  EXPECT_EQ(kimi.encode("<think></think>", true), (Ids{163606, 163607}));
  EXPECT_EQ(kimi.encode("<|im_end|>", true), Ids{163586});
  EXPECT_EQ(kimi.decode(kimi.encode("a  b\n\n c")), "a  b\n\n c");
  EXPECT_EQ(kimi.added_token_id("[PAD]"), 163839);
  EXPECT_EQ(kimi.added_token_id("<|reserved_token_163608|>"), 163608);
}

// Long runs and a megabyte of text stay near-linear. The limit is loose: timing decides nothing
// here but the difference between n log n and n squared.
TEST(Tokenizer, LongTexts) {
  for (const char unit : {' ', 'a', '\n', '0', '<'}) {
    const std::string text(1'000'000, unit);
    EXPECT_TRUE(tiny().decode(tiny().encode(text)) == text) << unit;
    EXPECT_TRUE(tiny().decode(tiny().encode(text, true)) == text) << unit;
  }
}

TEST(Tokenizer, Gguf) {
  GgufVocabulary vocabulary{"gpt2", "smollm", {}, {}, {}};
  vocabulary.tokens = {"a", "b", "c", "Ġ", "ab", "abc", "Ġa", "<|im_start|>", "1", "12", "Ċ"};
  vocabulary.token_types = {1, 1, 1, 1, 1, 1, 1, 3, 1, 1, 1};
  vocabulary.merges = {"a b", "ab c", "Ġ a", "1 2"};
  // "1 2" is listed without its digit "2" in the vocabulary.
  EXPECT_THROW(Tokenizer::from_gguf(vocabulary, "x.gguf"), Error);
  vocabulary.merges.pop_back();
  const Tokenizer tokenizer = Tokenizer::from_gguf(vocabulary, "x.gguf");
  EXPECT_EQ(tokenizer.encode("abc a11\n"), (Ids{5, 6, 8, 8, 10}));
  EXPECT_EQ(tokenizer.encode("a<|im_start|>", true), (Ids{0, 7}));
  EXPECT_EQ(tokenizer.decode(Ids{5, 6, 7}), "abc a<|im_start|>");
  vocabulary.model = "llama";
  EXPECT_THROW(Tokenizer::from_gguf(vocabulary, "x.gguf"), Error);
  vocabulary.model = "gpt2", vocabulary.pre = "deepseek-v3";
  EXPECT_THROW(Tokenizer::from_gguf(vocabulary, "x.gguf"), Error);
}

std::string error_of(const std::string& name, const std::string& content) {
  test::TemporaryFolder folder;
  std::ofstream(folder.path() / name) << content;
  try {
    Tokenizer::from_folder(folder.path());
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    EXPECT_NE(std::string(error.what()).find(folder.path().string()), std::string::npos);
    return std::string(error.what()).substr(folder.path().string().size());
  }
  return "no error";
}

TEST(Tokenizer, DamagedTiktokenFiles) {
  const auto tiktoken = [](const std::string& text) { return error_of("tiktoken.model", text); };
  EXPECT_NE(tiktoken("").find("an empty file"), std::string::npos);
  EXPECT_NE(tiktoken("YQ==\n").find("line 1: expected"), std::string::npos);
  EXPECT_NE(tiktoken("Y$== 0\n").find("not base64"), std::string::npos);
  EXPECT_NE(tiktoken("YQ== 0\nYg== 0\n").find("line 2: rank 0 occurs twice"), std::string::npos);
  EXPECT_NE(tiktoken("YQ== 0\nYg== 2\n").find("rank 1 is missing"), std::string::npos);
  EXPECT_NE(tiktoken("YQ== -1\n").find("rank is not"), std::string::npos);
  EXPECT_NE(tiktoken("YQ== 99999999999\n").find("rank is not"), std::string::npos);
  EXPECT_NE(tiktoken("YQ== 0\n").find("tokenizer_config.json"), std::string::npos);
}

TEST(Tokenizer, RefusedTokenizerJson) {
  const auto json = [](const std::string& pre, const std::string& model, const std::string& rest) {
    return error_of("tokenizer.json",
                    "{\"pre_tokenizer\":" + pre + ",\"model\":" + model + rest + "}");
  };
  const std::string byte_level = R"({"type":"ByteLevel","add_prefix_space":false})";
  const std::string model = R"({"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]})";
  EXPECT_EQ(json(byte_level, model, ""), "no error");
  const auto names = [&](const std::string& error, const std::string& part) {
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  names(json(R"({"type":"Metaspace"})", model, ""), "'Metaspace' is not supported");
  names(json(R"({"type":"ByteLevel"})", model, ""), "pre_tokenizer");
  names(json(R"({"type":"Split","behavior":"Isolated","pattern":{"Regex":"x"}})", model, ""),
        "pattern.Regex");
  names(json(byte_level, R"({"type":"Unigram"})", ""), "only BPE");
  names(json(byte_level, R"({"type":"BPE","vocab":{"a":0},"merges":["a b"]})", ""), "model.merges");
  names(json(byte_level, R"({"type":"BPE","vocab":{"a":-1},"merges":[]})", ""), "model.vocab");
  names(json(byte_level, R"({"byte_fallback":true,"vocab":{},"merges":[]})", ""), "byte_fallback");
  names(json(byte_level, model, R"(,"normalizer":{"type":"NFKC"})"), "normalizer");
  names(json(byte_level, model, R"(,"added_tokens":[{"id":3,"content":"x","rstrip":true}])"),
        "added_tokens[0].rstrip");
}

TEST(Tokenizer, ByteAlphabet) {
  EXPECT_EQ(bytes_of_alphabet("ĠaĊ"), " a\n");
  EXPECT_EQ(bytes_of_alphabet(" "), std::nullopt);
  EXPECT_EQ(bytes_of_alphabet("世"), std::nullopt);
}

}  // namespace
}  // namespace coppice
