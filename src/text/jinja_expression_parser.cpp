#include "text/jinja_expression_parser.h"

#include <charconv>

#include "base/error.h"

namespace coppice {
namespace {

using Token = JinjaToken::Kind;
using Kind = JinjaExpression::Kind;

constexpr int kMaxDepth = 200;

}  // namespace

const JinjaToken& JinjaTokenStream::take() {
  const JinjaToken& token = tokens_[position_];
  if (token.kind != Token::kEnd) ++position_;
  return token;
}

bool JinjaTokenStream::accept(Token kind) {
  if (!at(kind)) return false;
  take();
  return true;
}

bool JinjaTokenStream::accept_operator(std::string_view op) {
  if (!at_operator(op)) return false;
  take();
  return true;
}

bool JinjaTokenStream::accept_name(std::string_view name) {
  if (!at_name(name)) return false;
  take();
  return true;
}

const JinjaToken& JinjaTokenStream::expect(Token kind, std::string_view what) {
  if (!at(kind)) fail("expected " + std::string(what) + " before '" + current().text + "'");
  return take();
}

void JinjaTokenStream::expect_operator(std::string_view op) {
  if (!accept_operator(op)) {
    fail("expected '" + std::string(op) + "' before '" + current().text + "'");
  }
}

void JinjaTokenStream::expect_name(std::string_view name) {
  if (!accept_name(name)) {
    fail("expected '" + std::string(name) + "' before '" + current().text + "'");
  }
}

void JinjaTokenStream::fail(const std::string& cause) const {
  throw Error(ErrorKind::kBadFile,
              std::string(source_) + ": line " + std::to_string(current().line) + ": " + cause);
}

void JinjaTokenStream::unsupported(const std::string& what) const {
  throw Error(ErrorKind::kUnsupported, std::string(source_) + ": line " +
                                           std::to_string(current().line) + ": " + what +
                                           " is not supported in a chat template");
}

JinjaNesting::JinjaNesting(JinjaTokenStream& stream) : stream_(stream) {
  if (++stream_.depth_ > kMaxDepth) {
    --stream_.depth_;
    stream_.fail("nested too deeply");
  }
}

JinjaExpressionParser::Node JinjaExpressionParser::make(Kind kind) const {
  auto node = std::make_unique<JinjaExpression>();
  node->kind = kind;
  node->line = stream_.current().line;
  return node;
}

bool JinjaExpressionParser::ends_tuple() const {
  return stream_.at(Token::kBlockEnd) || stream_.at(Token::kVariableEnd) ||
         stream_.at_operator(")") || stream_.at_name("in") || stream_.at_name("if");
}

JinjaExpressionParser::Node JinjaExpressionParser::parse_maybe_tuple(bool with_condition) {
  Node first = parse_conditional(with_condition);
  if (!stream_.at_operator(",")) return first;
  Node tuple = make(Kind::kTuple);
  tuple->children.push_back(std::move(first));
  while (stream_.accept_operator(",") && !ends_tuple()) {
    tuple->children.push_back(parse_conditional(with_condition));
  }
  return tuple;
}

JinjaExpressionParser::Node JinjaExpressionParser::parse_conditional(bool with_condition) {
  const JinjaNesting nesting(stream_);
  Node node = parse_or();
  int chained = 0;
  while (with_condition && stream_.at_name("if")) {
    if (++chained > kMaxDepth) stream_.fail("nested too deeply");
    Node conditional = make(Kind::kConditional);
    stream_.take();
    conditional->children.push_back(std::move(node));
    conditional->children.push_back(parse_or());
    conditional->children.push_back(stream_.accept_name("else") ? parse_conditional(true)
                                                                : nullptr);
    node = std::move(conditional);
  }
  return node;
}

// next (op next)*. Left-deep chains are walked by recursion too: their length counts as depth.
template <typename Next, typename More>
JinjaExpressionParser::Node JinjaExpressionParser::parse_chain(Kind kind, Next next, More more) {
  Node node = next();
  for (int length = 0; more(); ++length) {
    if (length > kMaxDepth) stream_.fail("expression is too long");
    Node parent = make(kind);
    parent->name = stream_.take().text;
    parent->children.push_back(std::move(node));
    parent->children.push_back(next());
    node = std::move(parent);
  }
  return node;
}

JinjaExpressionParser::Node JinjaExpressionParser::parse_or() {
  return parse_chain(
      Kind::kOr, [this] { return parse_and(); }, [this] { return stream_.at_name("or"); });
}

JinjaExpressionParser::Node JinjaExpressionParser::parse_and() {
  return parse_chain(
      Kind::kAnd, [this] { return parse_not(); }, [this] { return stream_.at_name("and"); });
}

JinjaExpressionParser::Node JinjaExpressionParser::parse_not() {
  if (!stream_.at_name("not")) return parse_compare();
  const JinjaNesting nesting(stream_);
  Node node = make(Kind::kNot);
  stream_.take();
  node->children.push_back(parse_not());
  return node;
}

// Takes a comparison operator if one stands here; empty otherwise.
std::string JinjaExpressionParser::accept_comparison() {
  for (const char* op : {"==", "!=", "<", ">", "<=", ">="}) {
    if (stream_.accept_operator(op)) return op;
  }
  if (stream_.accept_name("in")) return "in";
  if (!stream_.at_name("not") || !stream_.next().is(Token::kName, "in")) return {};
  stream_.take();
  stream_.take();
  return "not in";
}

JinjaExpressionParser::Node JinjaExpressionParser::parse_compare() {
  Node first = parse_sum();
  std::string op = accept_comparison();
  if (op.empty()) return first;
  Node chain = make(Kind::kCompare);
  chain->children.push_back(std::move(first));
  while (!op.empty()) {
    chain->operators.push_back(op);
    chain->children.push_back(parse_sum());
    op = accept_comparison();
  }
  return chain;
}

JinjaExpressionParser::Node JinjaExpressionParser::parse_sum() {
  return parse_chain(
      Kind::kBinary, [this] { return parse_concat(); },
      [this] { return stream_.at_operator("+") || stream_.at_operator("-"); });
}

JinjaExpressionParser::Node JinjaExpressionParser::parse_concat() {
  Node first = parse_product();
  if (!stream_.at_operator("~")) return first;
  Node concat = make(Kind::kConcat);
  concat->children.push_back(std::move(first));
  while (stream_.accept_operator("~")) concat->children.push_back(parse_product());
  return concat;
}

JinjaExpressionParser::Node JinjaExpressionParser::parse_product() {
  const auto more = [this] {
    return stream_.at_operator("*") || stream_.at_operator("/") || stream_.at_operator("//") ||
           stream_.at_operator("%");
  };
  return parse_chain(
      Kind::kBinary, [this] { return parse_power(); }, more);
}

JinjaExpressionParser::Node JinjaExpressionParser::parse_power() {
  return parse_chain(
      Kind::kBinary, [this] { return parse_unary(true); },
      [this] { return stream_.at_operator("**"); });
}

JinjaExpressionParser::Node JinjaExpressionParser::parse_unary(bool with_filters) {
  Node node;
  if (stream_.at_operator("-") || stream_.at_operator("+")) {
    const JinjaNesting nesting(stream_);
    Node sign = make(Kind::kNegative);
    const bool negative = stream_.take().text == "-";
    node = parse_unary(false);
    if (negative) {
      sign->children.push_back(std::move(node));
      node = std::move(sign);
    }
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filters ? parse_filters(std::move(node)) : std::move(node);
}

JinjaExpressionParser::Node JinjaExpressionParser::parse_primary() {
  if (stream_.at(Token::kName)) return parse_name();
  if (stream_.at_operator("(")) return parse_parenthesis();
  if (stream_.at_operator("[")) return parse_list();
  if (stream_.at_operator("{")) return parse_dict();
  Node node = make(Kind::kLiteral);
  if (stream_.at(Token::kString)) {
    std::string text;
    while (stream_.at(Token::kString)) text += stream_.take().text;
    node->literal = JinjaValue::string(std::move(text), true);
    return node;
  }
  const std::string& digits = stream_.current().text;
  const char* end = digits.data() + digits.size();
  std::int64_t integer = 0;
  double real = 0;
  if (stream_.at(Token::kInteger) &&
      std::from_chars(digits.data(), end, integer).ec == std::errc{}) {
    node->literal = JinjaValue::integer(integer);
  } else if (stream_.at(Token::kFloat) &&
             std::from_chars(digits.data(), end, real).ec == std::errc{}) {
    node->literal = JinjaValue::number(real);
  } else {
    stream_.fail("unexpected '" + digits + "'");
  }
  stream_.take();
  return node;
}

JinjaExpressionParser::Node JinjaExpressionParser::parse_name() {
  Node node = make(Kind::kLiteral);
  const std::string name = stream_.take().text;
  if (name == "true" || name == "True") {
    node->literal = JinjaValue::boolean(true);
  } else if (name == "false" || name == "False") {
    node->literal = JinjaValue::boolean(false);
  } else if (name == "none" || name == "None") {
    node->literal = JinjaValue::none();
  } else {
    node->kind = Kind::kName;
    node->name = name;
  }
  return node;
}

JinjaExpressionParser::Node JinjaExpressionParser::parse_parenthesis() {
  stream_.take();
  if (stream_.at_operator(")")) {
    Node empty = make(Kind::kTuple);
    stream_.take();
    return empty;
  }
  Node node = parse_maybe_tuple(true);
  stream_.expect_operator(")");
  return node;
}

JinjaExpressionParser::Node JinjaExpressionParser::parse_list() {
  Node node = make(Kind::kList);
  stream_.take();
  while (!stream_.at_operator("]")) {
    if (!node->children.empty()) stream_.expect_operator(",");
    if (stream_.at_operator("]")) break;
    node->children.push_back(parse());
  }
  stream_.expect_operator("]");
  return node;
}

JinjaExpressionParser::Node JinjaExpressionParser::parse_dict() {
  Node node = make(Kind::kDict);
  stream_.take();
  while (!stream_.at_operator("}")) {
    if (!node->children.empty()) stream_.expect_operator(",");
    if (stream_.at_operator("}")) break;
    node->children.push_back(parse());
    stream_.expect_operator(":");
    node->children.push_back(parse());
  }
  stream_.expect_operator("}");
  return node;
}

JinjaExpressionParser::Node JinjaExpressionParser::parse_postfix(Node node) {
  for (int length = 0;; ++length) {
    if (length > kMaxDepth) stream_.fail("expression is too long");
    if (stream_.at_operator(".")) {
      node = parse_attribute(std::move(node));
    } else if (stream_.at_operator("[")) {
      node = parse_subscript(std::move(node));
    } else if (stream_.at_operator("(")) {
      Node call = make(Kind::kCall);
      call->children.push_back(std::move(node));
      parse_arguments(*call);
      node = std::move(call);
    } else {
      return node;
    }
  }
}

JinjaExpressionParser::Node JinjaExpressionParser::parse_attribute(Node node) {
  Node attribute = make(Kind::kAttribute);
  stream_.take();
  attribute->children.push_back(std::move(node));
  if (stream_.at(Token::kInteger)) {
    attribute->kind = Kind::kItem;
    attribute->children.push_back(parse_primary());
  } else {
    attribute->name = stream_.expect(Token::kName, "a member name").text;
  }
  return attribute;
}

JinjaExpressionParser::Node JinjaExpressionParser::parse_subscript(Node node) {
  Node item = make(Kind::kItem);
  stream_.take();
  item->children.push_back(std::move(node));
  JinjaExpressionPtr parts[3];
  std::size_t count = 0;
  bool slice = false;
  while (!stream_.at_operator("]")) {
    if (stream_.accept_operator(":")) {
      slice = true;
      if (++count > 2) stream_.fail("a slice has at most three parts");
    } else if (parts[count]) {
      stream_.fail("expected ']'");
    } else {
      parts[count] = parse();
    }
  }
  stream_.expect_operator("]");
  if (!slice && !parts[0]) stream_.fail("an index is missing");
  item->kind = slice ? Kind::kSlice : Kind::kItem;
  const std::size_t kept = slice ? 3 : 1;
  for (std::size_t i = 0; i < kept; ++i) item->children.push_back(std::move(parts[i]));
  return item;
}

void JinjaExpressionParser::parse_arguments(JinjaExpression& call) {
  stream_.expect_operator("(");
  bool first = true;
  while (!stream_.at_operator(")")) {
    if (!first) stream_.expect_operator(",");
    first = false;
    if (stream_.at_operator(")")) break;
    if (stream_.at_operator("*") || stream_.at_operator("**")) {
      stream_.unsupported("argument unpacking");
    }
    if (stream_.at(Token::kName) && stream_.next().is(Token::kOperator, "=")) {
      std::string name = stream_.take().text;
      stream_.take();
      call.named.emplace_back(std::move(name), parse());
    } else {
      if (!call.named.empty()) stream_.fail("a positional argument follows a named one");
      call.children.push_back(parse());
    }
  }
  stream_.expect_operator(")");
}

JinjaExpressionParser::Node JinjaExpressionParser::parse_filters(Node node) {
  for (int length = 0;; ++length) {
    if (length > kMaxDepth) stream_.fail("expression is too long");
    if (stream_.accept_operator("|")) {
      node = parse_one_filter(std::move(node));
    } else if (stream_.accept_name("is")) {
      node = parse_test(std::move(node));
    } else if (stream_.at_operator("(")) {
      Node call = make(Kind::kCall);
      call->children.push_back(std::move(node));
      parse_arguments(*call);
      node = std::move(call);
    } else {
      return node;
    }
  }
}

JinjaExpressionParser::Node JinjaExpressionParser::parse_one_filter(Node input) {
  Node filter = make(Kind::kFilter);
  filter->name = stream_.expect(Token::kName, "a filter name").text;
  filter->children.push_back(std::move(input));
  if (stream_.at_operator("(")) parse_arguments(*filter);
  return filter;
}

JinjaExpressionPtr JinjaExpressionParser::parse_filters_only(bool bare_first) {
  Node node;
  if (bare_first) node = parse_one_filter(nullptr);
  while (stream_.accept_operator("|")) node = parse_one_filter(std::move(node));
  return node;
}

JinjaExpressionParser::Node JinjaExpressionParser::parse_test(Node input) {
  const bool negated = stream_.accept_name("not");
  Node test = make(Kind::kTest);
  test->name = stream_.expect(Token::kName, "a test name").text;
  test->children.push_back(std::move(input));
  const bool value_follows = stream_.at(Token::kString) || stream_.at(Token::kInteger) ||
                             stream_.at(Token::kFloat) || stream_.at_operator("[") ||
                             stream_.at_operator("{");
  const bool name_follows = stream_.at(Token::kName) && !stream_.at_name("else") &&
                            !stream_.at_name("or") && !stream_.at_name("and") &&
                            !stream_.at_name("if") && !stream_.at_name("is") &&
                            !stream_.at_name("not") && !stream_.at_name("in");
  if (stream_.at_operator("(")) {
    parse_arguments(*test);
  } else if (value_follows || name_follows) {
    test->children.push_back(parse_postfix(parse_primary()));
  }
  if (!negated) return test;
  Node wrapped = make(Kind::kNot);
  wrapped->children.push_back(std::move(test));
  return wrapped;
}

}  // namespace coppice
