// Tokens of a chat template, with white space control already applied as transformers configures
// jinja2: trim_blocks and lstrip_blocks on, the final newline of the file dropped.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace coppice {

struct JinjaToken {
  enum class Kind {
    kData,  // text outside of tags
    kBlockBegin,
    kBlockEnd,
    kVariableBegin,
    kVariableEnd,
    kName,
    kString,  // text holds the value, escapes resolved
    kInteger,
    kFloat,
    kOperator,
    kEnd  // of the template
  };
  Kind kind;
  std::string text;
  int line;

  bool is(Kind wanted, std::string_view wanted_text) const {
    return kind == wanted && text == wanted_text;
  }
};

// Throws Error(kBadFile) "SOURCE: line N: cause". The last token is kEnd.
std::vector<JinjaToken> lex_jinja(std::string_view source_text, std::string_view source);

}  // namespace coppice
