#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include "tests/text/support/oracle.h"
#include "text/unicode.h"

namespace coppice {
namespace {

using Ids = std::vector<std::int32_t>;

const Tokenizer& tiny() {
  static const Tokenizer tokenizer = Tokenizer::from_folder(test::tiny_k2_folder());
  return tokenizer;
}

bool is_valid_utf8(const std::string& text) {
  return replace_invalid_utf8(text) == text;
}

// One id per byte: the first 256 ranks are the single bytes.
Ids byte_ids(const std::string& text) {
  Ids ids;
  for (const char c : text) {
    for (std::int32_t id = 0; id < 256; ++id) {
      if (tiny().token_bytes(id)[0] == c) ids.push_back(id);
    }
  }
  return ids;
}

std::string stream(const Ids& ids) {
  Detokenizer detokenizer(tiny());
  std::string joined;
  for (const std::int32_t id : ids) {
    const std::string delta = detokenizer.add(id);
    EXPECT_TRUE(is_valid_utf8(delta));
    joined += delta;
  }
  joined += detokenizer.finish();
  EXPECT_FALSE(detokenizer.has_pending());
  return joined;
}

TEST(Detokenizer, CharactersOverSeveralTokens) {
  for (const std::string text :
       {"👩‍👩‍👧 世界", "🇩🇪é", "ภาษาไทย", "plain", "", "a\u0301", "\U0010ffff"}) {
    EXPECT_EQ(stream(byte_ids(text)), text);
    EXPECT_EQ(stream(tiny().encode(text)), text);
  }
}

TEST(Detokenizer, HoldsBackExactlyTheOpenCharacter) {
  Detokenizer detokenizer(tiny());
  const Ids ids = byte_ids("世a");
  EXPECT_EQ(detokenizer.add(ids[0]), "");
  EXPECT_EQ(detokenizer.add(ids[1]), "");
  EXPECT_TRUE(detokenizer.has_pending());
  EXPECT_EQ(detokenizer.add(ids[2]), "世");
  EXPECT_FALSE(detokenizer.has_pending());
  EXPECT_EQ(detokenizer.add(ids[3]), "a");
}

TEST(Detokenizer, BrokenBytesBecomeReplacements) {
  EXPECT_EQ(stream(byte_ids("a\xe4\xb8")), "a\uFFFD\uFFFD");
  EXPECT_EQ(stream(byte_ids("\xe4\xb8z")), "\uFFFD\uFFFDz");
  EXPECT_EQ(stream(byte_ids("\xff\x80")), "\uFFFD\uFFFD");
}

TEST(Detokenizer, RandomIdsEqualWholeText) {
  std::uint64_t state = 1;
  const auto next = [&state] {
    return state = state * 6364136223846793005u + 1442695040888963407u;
  };
  for (int round = 0; round < 300; ++round) {
    Ids ids;
    const std::uint64_t range = round % 2 == 0 ? 256 : 5376;
    for (int i = 0; i < 100; ++i) ids.push_back(static_cast<std::int32_t>((next() >> 33) % range));
    ASSERT_EQ(stream(ids), replace_invalid_utf8(tiny().decode(ids)));
  }
}

TEST(Detokenizer, SkipsSpecials) {
  Detokenizer detokenizer(tiny(), true);
  EXPECT_EQ(detokenizer.add(5122), "");
  EXPECT_EQ(detokenizer.add(5142), "<think>");
  EXPECT_EQ(detokenizer.add(-1), "");
  EXPECT_EQ(detokenizer.add(5376), "");
}

}  // namespace
}  // namespace coppice
