// Expressions of the template language, by recursive descent with jinja2's precedence.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"

namespace coppice {

class JinjaTokenStream {
 public:
  // `source` must outlive the stream.
  JinjaTokenStream(std::vector<JinjaToken> tokens, std::string_view source)
      : tokens_(std::move(tokens)), source_(source) {}

  const JinjaToken& current() const { return tokens_[position_]; }
  const JinjaToken& next() const {
    return tokens_[position_ + 1 < tokens_.size() ? position_ + 1 : position_];
  }
  // The current token; the stream moves on unless that is the end.
  const JinjaToken& take();

  bool at(JinjaToken::Kind kind) const { return current().kind == kind; }
  bool at_operator(std::string_view op) const {
    return current().is(JinjaToken::Kind::kOperator, op);
  }
  bool at_name(std::string_view name) const { return current().is(JinjaToken::Kind::kName, name); }
  bool accept(JinjaToken::Kind kind);
  bool accept_operator(std::string_view op);
  bool accept_name(std::string_view name);
  const JinjaToken& expect(JinjaToken::Kind kind, std::string_view what);
  void expect_operator(std::string_view op);
  void expect_name(std::string_view name);

  // Throw Error "SOURCE: line N: cause" for the current token's line.
  [[noreturn]] void fail(const std::string& cause) const;
  [[noreturn]] void unsupported(const std::string& what) const;

 private:
  friend class JinjaNesting;
  std::vector<JinjaToken> tokens_;
  std::string_view source_;
  std::size_t position_ = 0;
  int depth_ = 0;
};

// Bounds the recursion of the parser, and so of everything that walks the tree.
class JinjaNesting {
 public:
  explicit JinjaNesting(JinjaTokenStream& stream);
  ~JinjaNesting() { --stream_.depth_; }
  JinjaNesting(const JinjaNesting&) = delete;
  JinjaNesting& operator=(const JinjaNesting&) = delete;

 private:
  JinjaTokenStream& stream_;
};

class JinjaExpressionParser {
 public:
  explicit JinjaExpressionParser(JinjaTokenStream& stream) : stream_(stream) {}

  // One expression, "a if b else c" included.
  JinjaExpressionPtr parse() { return parse_conditional(true); }
  // One expression, or a tuple of several.
  JinjaExpressionPtr parse_tuple() { return parse_maybe_tuple(true); }
  // As parse_tuple, leaving a following "if" to the caller (the filter of a for loop).
  JinjaExpressionPtr parse_tuple_without_condition() { return parse_maybe_tuple(false); }
  // "| filter | filter(x)" applied to a null input; null when there is none. With bare_first the
  // first filter stands without "|" and must be there.
  JinjaExpressionPtr parse_filters_only(bool bare_first = false);

 private:
  using Node = std::unique_ptr<JinjaExpression>;
  Node make(JinjaExpression::Kind kind) const;
  template <typename Next, typename More>
  Node parse_chain(JinjaExpression::Kind kind, Next next, More more);
  std::string accept_comparison();
  Node parse_maybe_tuple(bool with_condition);
  Node parse_conditional(bool with_condition);
  Node parse_or();
  Node parse_and();
  Node parse_not();
  Node parse_compare();
  Node parse_sum();
  Node parse_concat();
  Node parse_product();
  Node parse_power();
  Node parse_unary(bool with_filters);
  Node parse_primary();
  Node parse_name();
  Node parse_parenthesis();
  Node parse_list();
  Node parse_dict();
  Node parse_postfix(Node node);
  Node parse_filters(Node node);
  Node parse_subscript(Node node);
  Node parse_attribute(Node node);
  Node parse_one_filter(Node input);
  Node parse_test(Node input);
  void parse_arguments(JinjaExpression& call);
  bool ends_tuple() const;

  JinjaTokenStream& stream_;
};

}  // namespace coppice
