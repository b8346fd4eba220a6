#include "text/jinja_lexer.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "text/unicode.h"

namespace coppice {
namespace {

using Kind = JinjaToken::Kind;

bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Length of `text` without its trailing white space.
std::size_t stripped_end(std::string_view text) {
  std::size_t end = 0;
  for (std::size_t i = 0; i < text.size();) {
    const DecodedChar c = decode_utf8(text, i);
    i += c.length;
    if (!is_python_space(c.code_point)) end = i;
  }
  return end;
}

// \r\n and \r become \n; one final newline is dropped.
std::string normalize_newlines(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      out += '\n';
      if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
    } else {
      out += text[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

// Two-character operators first, so that the longest is taken.
constexpr std::array<std::string_view, 26> kOperators = {
    "//", "**", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  "<",  ">", "=", ".", ":", "|", ",", ";"};

class Lexer {
 public:
  Lexer(std::string_view text, std::string_view source)
      : text_(normalize_newlines(text)), source_(source) {}

  std::vector<JinjaToken> run() {
    while (position_ < text_.size()) {
      const std::size_t tag = next_tag();
      lex_data(tag);
      if (position_ < text_.size()) lex_tag();
    }
    push(Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& cause) const {
    throw Error(ErrorKind::kBadFile,
                std::string(source_) + ": line " + std::to_string(line_) + ": " + cause);
  }

  void push(Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  bool at(std::string_view wanted) const {
    return std::string_view(text_).substr(position_).starts_with(wanted);
  }

  void advance_to(std::size_t position) {
    line_ +=
        static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(position_),
                                    text_.begin() + static_cast<std::ptrdiff_t>(position), '\n'));
    // What the tokens before ended with decides whether a later tag stands at a line's start.
    if (position > position_) line_starting_ = text_[position - 1] == '\n';
    position_ = position;
  }

  void skip_spaces() {
    std::size_t end = position_;
    while (end < text_.size()) {
      const DecodedChar c = decode_utf8(text_, end);
      if (!is_python_space(c.code_point)) break;
      end += c.length;
    }
    advance_to(end);
  }

  std::size_t next_tag() const {
    for (std::size_t i = text_.find('{', position_); i != text_.npos; i = text_.find('{', i + 1)) {
      if (i + 1 == text_.size()) break;
      const char next = text_[i + 1];
      if (next == '{' || next == '%' || next == '#') return i;
    }
    return text_.size();
  }

  // Emits the text before the tag at `tag`, stripped as the tag's sign and place ask for.
  void lex_data(std::size_t tag) {
    std::string_view data = std::string_view(text_).substr(position_, tag - position_);
    if (tag < text_.size()) data = data.substr(0, kept_length(data, tag));
    if (!data.empty()) push(Kind::kData, std::string(data));
    advance_to(tag);
  }

  std::size_t kept_length(std::string_view data, std::size_t tag) const {
    const char sign = tag + 2 < text_.size() ? text_[tag + 2] : ' ';
    if (sign == '-') return stripped_end(data);
    if (sign == '+' || text_[tag + 1] == '{') return data.size();
    const std::size_t newline = data.rfind('\n');
    const std::size_t line_begin = newline == data.npos ? 0 : newline + 1;
    const bool at_line_start = newline != data.npos || line_starting_;
    const bool blank = stripped_end(data.substr(line_begin)) == 0;
    return at_line_start && blank ? line_begin : data.size();
  }

  void lex_tag() {
    const char opener = text_[position_ + 1];
    std::size_t begin = position_ + 2;
    if (begin < text_.size() && (text_[begin] == '-' || text_[begin] == '+')) ++begin;
    if (opener == '#') return lex_comment(begin);
    if (opener == '%' && lex_raw(begin)) return;
    push(opener == '%' ? Kind::kBlockBegin : Kind::kVariableBegin, "");
    advance_to(begin);
    lex_inside(opener == '%');
  }

  // Behind the closing bracket at `end`: "-" before it strips white space, "+" keeps the newline.
  void close_tag(std::size_t end, char sign, bool trims_newline) {
    advance_to(end);
    if (sign == '-') {
      skip_spaces();
    } else if (trims_newline && sign != '+' && position_ < text_.size() &&
               text_[position_] == '\n') {
      advance_to(position_ + 1);
    }
  }

  void lex_comment(std::size_t begin) {
    const std::size_t end = text_.find("#}", begin);
    if (end == text_.npos) fail("comment is not closed");
    close_tag(end + 2, end > begin ? text_[end - 1] : ' ', true);
  }

  // {% raw %} ... {% endraw %}: true when this tag is one.
  bool lex_raw(std::size_t begin) {
    std::size_t end = 0;
    char sign = ' ';
    if (!match_word_tag(begin, "raw", end, sign)) return false;
    close_tag(end, sign, false);
    for (std::size_t tag = text_.find("{%", position_); tag != text_.npos;
         tag = text_.find("{%", tag + 1)) {
      const std::size_t inside = tag + 2 + (text_[tag + 2] == '-' || text_[tag + 2] == '+' ? 1 : 0);
      if (!match_word_tag(inside, "endraw", end, sign)) continue;
      lex_data(tag);
      close_tag(end, sign, true);
      return true;
    }
    fail("raw block is not closed");
  }

  // Whether `word` and the end of the block tag stand at `begin`; gives the place behind the tag.
  bool match_word_tag(std::size_t begin, std::string_view word, std::size_t& end,
                      char& sign) const {
    std::size_t i = text_.find_first_not_of(" \t\n", begin);
    if (i == text_.npos || text_.compare(i, word.size(), word) != 0) return false;
    i = text_.find_first_not_of(" \t\n", i + word.size());
    if (i == text_.npos) return false;
    sign = text_[i];
    if (sign == '-' || sign == '+') ++i;
    end = i + 2;
    return text_.compare(i, 2, "%}") == 0;
  }

  // Tokens up to the end of a block or variable tag.
  void lex_inside(bool block) {
    const std::string_view closer = block ? "%}" : "}}";
    int brackets = 0;
    while (true) {
      skip_spaces();
      if (position_ >= text_.size()) fail("tag is not closed");
      if (brackets == 0) {
        const bool sign = at("-") || (block && at("+"));
        if (std::string_view(text_).substr(position_ + (sign ? 1 : 0)).starts_with(closer)) {
          push(block ? Kind::kBlockEnd : Kind::kVariableEnd, "");
          return close_tag(position_ + 2 + (sign ? 1 : 0), sign ? text_[position_] : ' ', block);
        }
      }
      lex_token(brackets);
    }
  }

  void lex_token(int& brackets) {
    const char c = text_[position_];
    if (is_name_start(c)) return lex_name();
    if (is_digit(c)) return lex_number();
    if (c == '\'' || c == '"') return lex_string(c);
    const auto found = std::find_if(kOperators.begin(), kOperators.end(),
                                    [&](std::string_view op) { return at(op); });
    if (found == kOperators.end()) fail(std::string("unexpected character '") + c + "'");
    if (c == '(' || c == '[' || c == '{') ++brackets;
    if (c == ')' || c == ']' || c == '}') --brackets;
    if (brackets < 0) fail(std::string("unexpected '") + c + "'");
    push(Kind::kOperator, std::string(*found));
    advance_to(position_ + found->size());
  }

  void lex_name() {
    std::size_t end = position_;
    while (end < text_.size() && (is_name_start(text_[end]) || is_digit(text_[end]))) ++end;
    push(Kind::kName, text_.substr(position_, end - position_));
    advance_to(end);
  }

  std::size_t digits_end(std::size_t i) const {
    while (i < text_.size() && (is_digit(text_[i]) || text_[i] == '_')) ++i;
    return i;
  }

  void lex_number() {
    std::size_t end = digits_end(position_);
    const bool after_dot = position_ > 0 && text_[position_ - 1] == '.';
    bool real = false;
    if (!after_dot && end + 1 < text_.size() && text_[end] == '.' && is_digit(text_[end + 1])) {
      end = digits_end(end + 1);
      real = true;
    }
    if (!after_dot && end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      std::size_t exponent = end + 1;
      if (exponent < text_.size() && (text_[exponent] == '+' || text_[exponent] == '-')) ++exponent;
      if (exponent < text_.size() && is_digit(text_[exponent])) {
        end = digits_end(exponent);
        real = true;
      }
    }
    std::string digits = text_.substr(position_, end - position_);
    std::erase(digits, '_');
    push(real ? Kind::kFloat : Kind::kInteger, digits);
    advance_to(end);
  }

  void lex_string(char quote) {
    std::string value;
    std::size_t i = position_ + 1;
    while (i < text_.size() && text_[i] != quote) {
      if (text_[i] == '\\' && i + 1 < text_.size()) {
        i = unescape(i + 1, value);
      } else {
        value += text_[i++];
      }
    }
    if (i >= text_.size()) fail("string is not closed");
    push(Kind::kString, value);
    advance_to(i + 1);
  }

  // Appends what the escape whose letter stands at `i` means; returns the place behind it.
  std::size_t unescape(std::size_t i, std::string& value) const {
    constexpr std::string_view kLetters = "nrtabfv0\\'\"", kMeanings("\n\r\t\a\b\f\v\0\\'\"", 11);
    const char letter = text_[i];
    if (const std::size_t known = kLetters.find(letter); known != kLetters.npos) {
      value += kMeanings[known];
      return i + 1;
    }
    const std::size_t digits = letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
    if (letter == '\n') return i + 1;
    if (digits == 0) {
      value += '\\';
      value += letter;
      return i + 1;
    }
    char32_t code = 0;
    for (std::size_t k = 1; k <= digits; ++k) {
      const char c = i + k < text_.size() ? text_[i + k] : ' ';
      const int value_of_digit = is_digit(c)              ? c - '0'
                                 : (c >= 'a' && c <= 'f') ? c - 'a' + 10
                                 : (c >= 'A' && c <= 'F') ? c - 'A' + 10
                                                          : -1;
      if (value_of_digit < 0) fail("bad escape in a string");
      code = code << 4 | static_cast<char32_t>(value_of_digit);
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) fail("bad escape in a string");
    append_utf8(value, code);
    return i + 1 + digits;
  }

  std::string text_;
  std::string_view source_;
  std::vector<JinjaToken> tokens_;
  std::size_t position_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
};

}  // namespace

std::vector<JinjaToken> lex_jinja(std::string_view source_text, std::string_view source) {
  return Lexer(source_text, source).run();
}

}  // namespace coppice
