#include "text/jinja_parser.h"

#include <algorithm>

#include "base/error.h"
#include "text/jinja_expression_parser.h"

namespace coppice {
namespace {

using Token = JinjaToken::Kind;
using Statement = JinjaStatement::Kind;
using StatementPtr = std::unique_ptr<const JinjaStatement>;

// Statements of other template uses than chat.
constexpr std::string_view kForeignTags[] = {"extends", "block",      "include", "import",
                                             "from",    "autoescape", "do",      "trans"};

class Parser {
 public:
  Parser(std::vector<JinjaToken> tokens, std::string_view source)
      : stream_(std::move(tokens), source), expressions_(stream_) {}

  JinjaBody run() {
    JinjaBody body = parse_body({});
    if (!stream_.at(Token::kEnd)) stream_.fail("unexpected '" + stream_.current().text + "' tag");
    return body;
  }

 private:
  // Statements up to the end or a block tag that starts with one of `ends`; stops at that name.
  JinjaBody parse_body(std::initializer_list<std::string_view> ends) {
    const JinjaNesting nesting(stream_);
    JinjaBody body;
    while (!stream_.at(Token::kEnd)) {
      if (stream_.at(Token::kData)) {
        auto text = make(Statement::kText);
        text->text = MarkedText(stream_.take().text, true);
        body.push_back(std::move(text));
      } else if (stream_.accept(Token::kVariableBegin)) {
        auto output = make(Statement::kOutput);
        output->expression = expressions_.parse_tuple();
        stream_.expect(Token::kVariableEnd, "end of a variable tag");
        body.push_back(std::move(output));
      } else {
        stream_.expect(Token::kBlockBegin, "a tag");
        const std::string& name = stream_.current().text;
        if (std::find(ends.begin(), ends.end(), name) != ends.end()) return body;
        if (ends.size() == 0 && name.starts_with("end")) return body;
        body.push_back(parse_statement());
      }
    }
    if (ends.size() != 0) stream_.fail("missing '" + std::string(*(ends.end() - 1)) + "'");
    return body;
  }

  std::unique_ptr<JinjaStatement> make(Statement kind) const {
    auto statement = std::make_unique<JinjaStatement>();
    statement->kind = kind;
    statement->line = stream_.current().line;
    return statement;
  }

  void end_block() { stream_.expect(Token::kBlockEnd, "end of a block tag"); }
  void end_tag(std::string_view name) {
    stream_.expect_name(name);
    end_block();
  }

  StatementPtr parse_statement() {
    if (!stream_.at(Token::kName)) stream_.fail("a tag name is missing");
    const std::string name = stream_.current().text;
    if (name == "if") return parse_if();
    if (name == "for") return parse_for();
    if (name == "set") return parse_set();
    if (name == "macro") return parse_macro();
    if (name == "call") return parse_call();
    if (name == "filter") return parse_filter();
    if (name == "with") return parse_with();
    if (name == "generation") return parse_generation();
    if (name == "break" || name == "continue") {
      if (loops_ == 0) stream_.fail("'" + name + "' outside of a loop");
      auto jump = make(name == "break" ? Statement::kBreak : Statement::kContinue);
      end_tag(name);
      return jump;
    }
    const auto foreign = std::find(std::begin(kForeignTags), std::end(kForeignTags), name);
    if (foreign != std::end(kForeignTags)) stream_.unsupported("tag '" + name + "'");
    stream_.fail("unknown tag '" + name + "'");
  }

  // From "if" or "elif" on; an elif chain nests in `other`.
  StatementPtr parse_if() {
    auto statement = make(Statement::kIf);
    stream_.take();
    statement->expression = expressions_.parse_tuple();
    end_block();
    statement->body = parse_body({"elif", "else", "endif"});
    if (stream_.current().text == "elif") {
      const JinjaNesting nesting(stream_);
      statement->other.push_back(parse_if());
      return statement;
    }
    if (stream_.accept_name("else")) {
      end_block();
      statement->other = parse_body({"endif"});
    }
    end_tag("endif");
    return statement;
  }

  StatementPtr parse_for() {
    auto statement = make(Statement::kFor);
    stream_.take();
    statement->targets = parse_targets();
    stream_.expect_name("in");
    statement->expression = expressions_.parse_tuple_without_condition();
    if (stream_.accept_name("if")) statement->condition = expressions_.parse();
    if (stream_.accept_name("recursive")) stream_.unsupported("recursive loops");
    end_block();
    ++loops_;
    statement->body = parse_body({"else", "endfor"});
    --loops_;
    if (stream_.accept_name("else")) {
      end_block();
      statement->other = parse_body({"endfor"});
    }
    end_tag("endfor");
    return statement;
  }

  // name or name, name ... with or without parentheses
  std::vector<std::string> parse_targets() {
    std::vector<std::string> targets;
    const bool parenthesis = stream_.accept_operator("(");
    do {
      targets.push_back(stream_.expect(Token::kName, "a variable name").text);
    } while (stream_.accept_operator(","));
    if (parenthesis) stream_.expect_operator(")");
    return targets;
  }

  StatementPtr parse_set() {
    auto statement = make(Statement::kSet);
    stream_.take();
    statement->targets = parse_targets();
    if (stream_.accept_operator(".")) {
      statement->attribute = stream_.expect(Token::kName, "a member name").text;
    }
    if (stream_.accept_operator("=")) {
      statement->expression = expressions_.parse_tuple();
      end_block();
      return statement;
    }
    if (statement->targets.size() != 1) stream_.fail("'=' is missing");
    statement->kind = Statement::kSetBlock;
    statement->expression = expressions_.parse_filters_only();
    end_block();
    statement->body = parse_body({"endset"});
    end_tag("endset");
    return statement;
  }

  std::vector<JinjaParameter> parse_parameters() {
    std::vector<JinjaParameter> parameters;
    stream_.expect_operator("(");
    while (!stream_.at_operator(")")) {
      if (!parameters.empty()) stream_.expect_operator(",");
      if (stream_.at_operator(")")) break;
      JinjaParameter parameter;
      parameter.name = stream_.expect(Token::kName, "a parameter name").text;
      if (stream_.accept_operator("=")) {
        parameter.fallback = expressions_.parse();
      } else if (!parameters.empty() && parameters.back().fallback) {
        stream_.fail("a parameter without default follows one with a default");
      }
      parameters.push_back(std::move(parameter));
    }
    stream_.expect_operator(")");
    return parameters;
  }

  StatementPtr parse_macro() {
    auto statement = make(Statement::kMacro);
    stream_.take();
    statement->name = stream_.expect(Token::kName, "a macro name").text;
    statement->parameters = parse_parameters();
    end_block();
    statement->body = parse_outside_loops({"endmacro"});
    stream_.expect_name("endmacro");
    if (stream_.at(Token::kName)) stream_.take();
    end_block();
    return statement;
  }

  StatementPtr parse_call() {
    auto statement = make(Statement::kCallBlock);
    stream_.take();
    if (stream_.at_operator("(")) statement->parameters = parse_parameters();
    statement->expression = expressions_.parse();
    if (statement->expression->kind != JinjaExpression::Kind::kCall) {
      stream_.fail("'call' needs a call");
    }
    end_block();
    statement->body = parse_outside_loops({"endcall"});
    end_tag("endcall");
    return statement;
  }

  // A macro's body runs elsewhere: no break or continue may leave it.
  JinjaBody parse_outside_loops(std::initializer_list<std::string_view> ends) {
    const int loops = std::exchange(loops_, 0);
    JinjaBody body = parse_body(ends);
    loops_ = loops;
    return body;
  }

  StatementPtr parse_filter() {
    auto statement = make(Statement::kFilterBlock);
    stream_.take();
    statement->expression = expressions_.parse_filters_only(true);
    end_block();
    statement->body = parse_body({"endfilter"});
    end_tag("endfilter");
    return statement;
  }

  StatementPtr parse_with() {
    auto statement = make(Statement::kWith);
    stream_.take();
    while (!stream_.at(Token::kBlockEnd)) {
      if (!statement->targets.empty()) stream_.expect_operator(",");
      statement->targets.push_back(stream_.expect(Token::kName, "a variable name").text);
      stream_.expect_operator("=");
      statement->values.push_back(expressions_.parse());
    }
    end_block();
    statement->body = parse_body({"endwith"});
    end_tag("endwith");
    return statement;
  }

  // transformers marks the assistant's part with it; the text is that of its body.
  StatementPtr parse_generation() {
    auto statement = make(Statement::kScope);
    end_tag("generation");
    statement->body = parse_body({"endgeneration"});
    end_tag("endgeneration");
    return statement;
  }

  JinjaTokenStream stream_;
  JinjaExpressionParser expressions_;
  int loops_ = 0;
};

}  // namespace

JinjaBody parse_jinja(std::string_view template_text, std::string_view source) {
  return Parser(lex_jinja(template_text, source), source).run();
}

}  // namespace coppice
