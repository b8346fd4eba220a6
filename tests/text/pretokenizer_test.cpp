#include "text/pretokenizer.h"

#include <gtest/gtest.h>

#include <string>

#include "text/unicode.h"

namespace coppice {
namespace {

using Pieces = std::vector<std::string>;

Pieces cut(PreTokenizer kind, const std::string& text) {
  Pieces out;
  for (const Piece& piece : pre_tokenize(kind, text)) {
    out.push_back(text.substr(piece.begin, piece.end - piece.begin));
  }
  return out;
}

TEST(PreTokenizer, Kimi) {
  const auto kimi = [](const std::string& text) { return cut(PreTokenizer::kKimi, text); };
  EXPECT_EQ(kimi(""), Pieces{});
  EXPECT_EQ(kimi("今天是2024年。"), (Pieces{"今天是", "202", "4", "年", "。"}));
  EXPECT_EQ(kimi("don't WE'LL"), (Pieces{"don't", " WE'LL"}));
  EXPECT_EQ(kimi("HTTPServer"), (Pieces{"HTTPServer"}));
  EXPECT_EQ(kimi("fooBar"), (Pieces{"foo", "Bar"}));
  EXPECT_EQ(kimi("it'\u017f"), (Pieces{"it'\u017f"}));
  EXPECT_EQ(kimi("a  b\n\n c"), (Pieces{"a", " ", " b", "\n\n", " c"}));
  EXPECT_EQ(kimi("x  \n  \n  y"), (Pieces{"x", "  \n  \n", " ", " y"}));
  EXPECT_EQ(kimi(" ...\r\n"), (Pieces{" ...\r\n"}));
  EXPECT_EQ(kimi("\u0301A"), (Pieces{"\u0301", "A"}));
  EXPECT_EQ(kimi("あAB "), (Pieces{"あ", "AB", " "}));
  EXPECT_EQ(kimi("あ世い"), (Pieces{"あ", "世", "い"}));
}

TEST(PreTokenizer, OtherPatterns) {
  EXPECT_EQ(cut(PreTokenizer::kLlama3, "I'M 12345"), (Pieces{"I", "'M", " ", "123", "45"}));
  EXPECT_EQ(cut(PreTokenizer::kQwen2, "x12 .\n"), (Pieces{"x", "1", "2", " .\n"}));
  EXPECT_EQ(cut(PreTokenizer::kGpt2, "I'M we're 12345"),
            (Pieces{"I", "'", "M", " we", "'re", " 12345"}));
  EXPECT_EQ(cut(PreTokenizer::kGpt2, " .\n\n x"), (Pieces{" .", "\n\n", " x"}));
  EXPECT_EQ(cut(PreTokenizer::kSmolLm, "a  12"), (Pieces{"a", "  ", "1", "2"}));
}

TEST(PreTokenizer, MalformedBytesStay) {
  const std::string text = "a\xff\xc3 \xe2\x82";
  std::string joined;
  for (const std::string& piece : cut(PreTokenizer::kKimi, text)) joined += piece;
  EXPECT_EQ(joined, text);
}

TEST(PreTokenizer, KimiChunks) {
  const auto lengths = [](const std::string& text, std::uint32_t chunk, std::uint32_t run) {
    std::vector<std::uint32_t> out;
    for (const Piece& piece : kimi_chunks(text, chunk, run)) out.push_back(piece.end - piece.begin);
    return out;
  };
  using Lengths = std::vector<std::uint32_t>;
  EXPECT_EQ(lengths("", 10, 3), Lengths{});
  EXPECT_EQ(lengths("aaaaaaa", 100, 3), (Lengths{3, 3, 1}));
  EXPECT_EQ(lengths("aa  aa", 100, 3), (Lengths{6}));
  EXPECT_EQ(lengths("aaaaa    b", 100, 3), (Lengths{3, 5, 2}));
  EXPECT_EQ(lengths("aaaaa", 2, 3), (Lengths{2, 2, 1}));
  EXPECT_EQ(lengths("ééé", 2, 3), (Lengths{4, 2}));
}

TEST(Unicode, Utf8RoundTrip) {
  for (char32_t c = 0; c < 0x110000; c += c < 0x3000 ? 1 : 37) {
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string text;
    append_utf8(text, c);
    const DecodedChar decoded = decode_utf8(text, 0);
    ASSERT_EQ(decoded.code_point, c);
    ASSERT_EQ(decoded.length, text.size());
    ASSERT_EQ(incomplete_utf8_suffix(text), 0u);
    for (std::size_t cut_at = 1; cut_at < text.size(); ++cut_at) {
      ASSERT_EQ(incomplete_utf8_suffix(std::string_view(text).substr(0, cut_at)), cut_at);
      ASSERT_GE(decode_utf8(std::string_view(text).substr(0, cut_at), 0).code_point, kInvalidByte);
    }
  }
}

TEST(Unicode, MalformedForms) {
  for (const char* text : {"\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80",
                           "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "\x80", "\xff"}) {
    EXPECT_GE(decode_utf8(text, 0).code_point, kInvalidByte) << text;
    EXPECT_EQ(incomplete_utf8_suffix(text), 0u);
  }
  EXPECT_EQ(replace_invalid_utf8("a\xff"
                                 "b\xe2\x82"),
            "a\uFFFDb\uFFFD\uFFFD");
}

}  // namespace
}  // namespace coppice
