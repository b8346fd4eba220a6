// Syntax tree of a chat template. Immutable after parsing.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja_value.h"

namespace coppice {

struct JinjaExpression;
using JinjaExpressionPtr = std::unique_ptr<const JinjaExpression>;

struct JinjaExpression {
  enum class Kind {
    kLiteral,      // literal
    kName,         // name
    kList,         // children
    kTuple,        // children
    kDict,         // children: key, value, key, value ...
    kAttribute,    // children[0] . name
    kItem,         // children[0] [ children[1] ]
    kSlice,        // children[0] [ children[1] : children[2] : children[3] ], any but 0 may be null
    kCall,         // children[0] ( children[1...], named )
    kFilter,       // children[0] | name ( children[1...], named )
    kTest,         // children[0] is name ( children[1...] )
    kNot,          // not children[0]
    kNegative,     // - children[0]
    kBinary,       // children[0] name children[1]; name is an arithmetic operator
    kCompare,      // children[0] operators[0] children[1] operators[1] children[2] ...
    kAnd,          // children[0] and children[1]
    kOr,           // children[0] or children[1]
    kConcat,       // children joined by ~
    kConditional,  // children[0] if children[1] else children[2] (may be null)
  };
  Kind kind;
  int line;
  std::string name;
  JinjaValue literal;
  std::vector<JinjaExpressionPtr> children;
  std::vector<std::string> operators;
  std::vector<std::pair<std::string, JinjaExpressionPtr>> named;
};

struct JinjaStatement;
using JinjaBody = std::vector<std::unique_ptr<const JinjaStatement>>;

struct JinjaParameter {
  std::string name;
  JinjaExpressionPtr fallback;  // null: no default
};

struct JinjaStatement {
  enum class Kind {
    kText,         // text
    kOutput,       // expression
    kIf,           // expression, body, other
    kFor,          // targets in expression [if condition], body, other
    kSet,          // targets (or name.attribute) = expression
    kSetBlock,     // targets[0] = filters(body); filters: expression whose innermost input is null
    kMacro,        // name, parameters, body
    kCallBlock,    // expression is a call; parameters, body of caller()
    kFilterBlock,  // expression as in kSetBlock, body
    kWith,         // targets[i] = values[i], body
    kScope,        // body (generation blocks)
    kBreak,
    kContinue,
  };
  Kind kind;
  int line;
  MarkedText text;
  std::string name;
  std::string attribute;  // kSet on a namespace member
  JinjaExpressionPtr expression;
  JinjaExpressionPtr condition;
  std::vector<std::string> targets;
  std::vector<JinjaExpressionPtr> values;
  std::vector<JinjaParameter> parameters;
  JinjaBody body;
  JinjaBody other;
};

}  // namespace coppice
