#include "text/jinja_interpreter.h"

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "text/jinja_globals.h"
#include "text/jinja_scope.h"

namespace coppice {
namespace {

using Kind = JinjaValue::Kind;
using Expression = JinjaExpression::Kind;
using Statement = JinjaStatement::Kind;

constexpr int kMaxDepth = 800;               // of nested evaluation, macro calls included
constexpr std::size_t kNamespaceSteps = 64;  // a namespace lives until the end

class Interpreter {
 public:
  Interpreter(const std::tm& now, const JinjaLimits& limits) : now_(now), budget_(limits) {}
  // Namespaces may hold one another: cut all links.
  ~Interpreter() {
    for (const auto& space : namespaces_) space->members.clear();
  }
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  MarkedText run(const JinjaBody& body, JinjaVariables variables) {
    const JinjaFrame globals(nullptr);
    globals.scope()->variables = std::move(variables);
    add_globals(globals.scope());
    const JinjaFrame root(globals.scope());
    MarkedText out;
    execute_body(body, root.scope(), out);
    return out;
  }
  int line() const { return line_; }

 private:
  enum class Flow { kNext, kBreak, kContinue };

  // Counts one step and one level of recursion.
  class Step {
   public:
    explicit Step(Interpreter& interpreter) : interpreter_(interpreter) {
      interpreter_.budget_.charge(1);
      if (++interpreter_.depth_ > kMaxDepth) {
        --interpreter_.depth_;
        jinja_fail("evaluation is nested too deeply");
      }
    }
    ~Step() { --interpreter_.depth_; }
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

   private:
    Interpreter& interpreter_;
  };

  void add_globals(const JinjaScopePtr& scope) {
    const auto add = [&](const char* name, JinjaFunction function) {
      scope->variables.emplace_back(name, JinjaValue::function(std::move(function)));
    };
    add("range", [this](const JinjaArguments& a) { return jinja_range(a, budget_); });
    add("namespace", [this](const JinjaArguments& a) { return namespace_of(a); });
    add("dict", [](const JinjaArguments& a) { return jinja_dict(a); });
    add("raise_exception", [](const JinjaArguments& a) -> JinjaValue {
      jinja_fail(a.at(0, "message").to_text().text());
    });
    add("strftime_now", [this](const JinjaArguments& a) { return jinja_strftime(a, now_); });
  }

  JinjaValue namespace_of(const JinjaArguments& arguments) {
    budget_.charge(kNamespaceSteps);
    auto space = std::make_shared<JinjaValue::Namespace>();
    space->members = jinja_members(arguments);
    namespaces_.push_back(space);
    return JinjaValue::make_namespace(std::move(space));
  }

  // Statements.

  Flow execute_body(const JinjaBody& body, const JinjaScopePtr& scope, MarkedText& out) {
    for (const auto& statement : body) {
      const Flow flow = execute(*statement, scope, out);
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  MarkedText capture(const JinjaBody& body, const JinjaScopePtr& scope) {
    MarkedText text;
    const JinjaFrame frame(scope);
    execute_body(body, frame.scope(), text);
    return text;
  }

  void write(MarkedText& out, const MarkedText& text) {
    budget_.charge_bytes(text.size());
    budget_.check_bytes(out.size() + text.size());
    out.append(text);
  }

  Flow execute(const JinjaStatement& statement, const JinjaScopePtr& scope, MarkedText& out) {
    const Step step(*this);
    line_ = statement.line;
    switch (statement.kind) {
      case Statement::kText:
        write(out, statement.text);
        return Flow::kNext;
      case Statement::kOutput:
        write(out, evaluate(*statement.expression, scope).to_text());
        return Flow::kNext;
      case Statement::kIf:
        return execute_body(
            evaluate(*statement.expression, scope).truthy() ? statement.body : statement.other,
            scope, out);
      case Statement::kFor:
        return execute_for(statement, scope, out);
      case Statement::kSet:
        assign(statement, evaluate(*statement.expression, scope), scope);
        return Flow::kNext;
      case Statement::kSetBlock:
        scope->set(statement.targets[0], filtered_body(statement, scope));
        return Flow::kNext;
      case Statement::kMacro:
        scope->set(statement.name, make_macro(statement, scope));
        return Flow::kNext;
      case Statement::kCallBlock:
        write(out, call_with_caller(statement, scope).to_text());
        return Flow::kNext;
      case Statement::kFilterBlock:
        write(out, filtered_body(statement, scope).to_text());
        return Flow::kNext;
      case Statement::kWith:
        return execute_with(statement, scope, out);
      case Statement::kScope:
        return execute_body(statement.body, scope, out);
      case Statement::kBreak:
        return Flow::kBreak;
      case Statement::kContinue:
        return Flow::kContinue;
    }
    return Flow::kNext;
  }

  void assign(const JinjaStatement& statement, const JinjaValue& value,
              const JinjaScopePtr& scope) {
    if (statement.attribute.empty()) return assign_targets(statement.targets, value, *scope);
    const JinjaValue target = lookup(statement.targets[0], scope);
    if (!target.is(Kind::kNamespace)) jinja_fail("only a namespace has members that can be set");
    for (auto& [key, old] : target.as_namespace().members) {
      if (key == statement.attribute) {
        old = value;
        return;
      }
    }
    target.as_namespace().members.emplace_back(statement.attribute, value);
  }

  static void assign_targets(const std::vector<std::string>& targets, const JinjaValue& value,
                             JinjaScope& scope) {
    if (targets.size() == 1) return scope.set(targets[0], value);
    const JinjaValue::List items = jinja_items(value);
    if (items.size() != targets.size()) {
      jinja_fail("cannot unpack " + std::to_string(items.size()) + " values into " +
                 std::to_string(targets.size()) + " names");
    }
    for (std::size_t i = 0; i < targets.size(); ++i) scope.set(targets[i], items[i]);
  }

  JinjaValue filtered_body(const JinjaStatement& statement, const JinjaScopePtr& scope) {
    JinjaValue text = JinjaValue::string(capture(statement.body, scope));
    if (!statement.expression) return text;
    block_inputs_.push_back(text);
    JinjaValue result = evaluate(*statement.expression, scope);
    block_inputs_.pop_back();
    return result;
  }

  Flow execute_with(const JinjaStatement& statement, const JinjaScopePtr& scope, MarkedText& out) {
    const JinjaFrame frame(scope);
    for (std::size_t i = 0; i < statement.targets.size(); ++i) {
      frame.scope()->set(statement.targets[i], evaluate(*statement.values[i], scope));
    }
    return execute_body(statement.body, frame.scope(), out);
  }

  JinjaValue::List loop_items(const JinjaStatement& statement, const JinjaScopePtr& scope) {
    JinjaValue::List items = jinja_items(evaluate(*statement.expression, scope));
    budget_.charge(items.size());
    if (!statement.condition) return items;
    JinjaValue::List kept;
    for (const JinjaValue& item : items) {
      const JinjaFrame frame(scope);
      assign_targets(statement.targets, item, *frame.scope());
      if (evaluate(*statement.condition, frame.scope()).truthy()) kept.push_back(item);
    }
    return kept;
  }

  Flow execute_for(const JinjaStatement& statement, const JinjaScopePtr& scope, MarkedText& out) {
    const JinjaValue::List items = loop_items(statement, scope);
    if (items.empty()) return execute_body(statement.other, scope, out);
    const auto loop = std::make_shared<JinjaValue::Namespace>();
    // The loop object may have been stored in itself; no link outlives the loop.
    const auto clear = [](JinjaValue::Namespace* members) { members->members.clear(); };
    const std::unique_ptr<JinjaValue::Namespace, decltype(clear)> cleaner(loop.get(), clear);
    for (std::size_t i = 0; i < items.size(); ++i) {
      const JinjaFrame frame(scope);
      loop->members = jinja_loop_members(items, i);
      frame.scope()->set("loop", JinjaValue::make_namespace(loop));
      assign_targets(statement.targets, items[i], *frame.scope());
      if (execute_body(statement.body, frame.scope(), out) == Flow::kBreak) break;
    }
    return Flow::kNext;
  }

  // Macros.

  JinjaValue make_macro(const JinjaStatement& statement, const JinjaScopePtr& scope) {
    return JinjaValue::function([this, &statement, scope](const JinjaArguments& arguments) {
      return call_macro(statement, scope, arguments);
    });
  }

  JinjaValue call_macro(const JinjaStatement& macro, const JinjaScopePtr& scope,
                        const JinjaArguments& arguments) {
    const Step step(*this);
    const int line = line_;
    const JinjaFrame frame(scope);
    const auto& parameters = macro.parameters;
    if (arguments.positional.size() > parameters.size()) {
      jinja_fail("macro '" + macro.name + "' takes at most " + std::to_string(parameters.size()) +
                 " arguments");
    }
    for (const auto& [name, value] : arguments.named) {
      const bool known =
          name == "caller" || std::any_of(parameters.begin(), parameters.end(),
                                          [&name = name](const auto& p) { return p.name == name; });
      if (!known) jinja_fail("macro '" + macro.name + "' has no parameter '" + name + "'");
      if (name == "caller") frame.scope()->set(name, value);
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const JinjaValue* given = arguments.find(i, parameters[i].name);
      JinjaValue value = JinjaValue::undefined(parameters[i].name);
      if (given != nullptr) {
        value = *given;
      } else if (parameters[i].fallback) {
        value = evaluate(*parameters[i].fallback, frame.scope());
      }
      frame.scope()->set(parameters[i].name, std::move(value));
    }
    MarkedText text;
    execute_body(macro.body, frame.scope(), text);
    line_ = line;
    return JinjaValue::string(std::move(text));
  }

  JinjaValue call_with_caller(const JinjaStatement& statement, const JinjaScopePtr& scope) {
    JinjaArguments arguments = evaluate_arguments(*statement.expression, scope);
    arguments.named.emplace_back("caller", make_macro(statement, scope));
    return call(*statement.expression, scope, arguments);
  }

  // Expressions.

  JinjaValue lookup(const std::string& name, const JinjaScopePtr& from) const {
    for (const JinjaScope* scope = from.get(); scope != nullptr; scope = scope->parent.get()) {
      for (const auto& [key, value] : scope->variables) {
        if (key == name) return value;
      }
    }
    return JinjaValue::undefined(name);
  }

  JinjaArguments evaluate_arguments(const JinjaExpression& node, const JinjaScopePtr& scope) {
    JinjaArguments arguments;
    for (std::size_t i = 1; i < node.children.size(); ++i) {
      arguments.positional.push_back(evaluate(*node.children[i], scope));
    }
    for (const auto& [name, value] : node.named) {
      arguments.named.emplace_back(name, evaluate(*value, scope));
    }
    return arguments;
  }

  JinjaValue call(const JinjaExpression& node, const JinjaScopePtr& scope,
                  const JinjaArguments& arguments) {
    const JinjaExpression& callee = *node.children[0];
    if (callee.kind == Expression::kAttribute) {
      const JinjaValue object = evaluate(*callee.children[0], scope);
      if (object.is(Kind::kNamespace) && callee.name == "cycle")
        return jinja_cycle(object, arguments);
      if (object.is(Kind::kList) && (callee.name == "append" || callee.name == "pop")) {
        return change_list(*callee.children[0], object, callee.name, arguments, scope);
      }
      if (jinja_has_method(object, callee.name)) {
        return jinja_call_method(object, callee.name, arguments, budget_);
      }
      return call_value(jinja_attribute(object, callee.name), callee.name, arguments);
    }
    return call_value(evaluate(callee, scope), callee.name, arguments);
  }

  // list.append(x) and list.pop(i): values are immutable, so the changed copy is written back to
  // the variable or namespace member that the list was read from.
  JinjaValue change_list(const JinjaExpression& place, const JinjaValue& list,
                         const std::string& method, const JinjaArguments& arguments,
                         const JinjaScopePtr& scope) {
    JinjaValue::List items = list.as_list();
    budget_.charge(items.size());
    JinjaValue result = JinjaValue::none();
    if (method == "append") {
      items.push_back(arguments.at(0, "object"));
    } else {
      const JinjaValue* given = arguments.find(0, "index");
      const auto length = static_cast<std::int64_t>(items.size());
      std::int64_t index = given == nullptr ? -1 : given->to_integer("index");
      if (index < 0) index += length;
      if (index < 0 || index >= length) jinja_fail("pop index out of range");
      result = items[static_cast<std::size_t>(index)];
      items.erase(items.begin() + index);
    }
    write_back(place, JinjaValue::list(std::move(items)), scope);
    return result;
  }

  void write_back(const JinjaExpression& place, JinjaValue value, const JinjaScopePtr& from) {
    if (place.kind == Expression::kName) {
      for (JinjaScope* scope = from.get(); scope != nullptr; scope = scope->parent.get()) {
        for (auto& [key, old] : scope->variables) {
          if (key != place.name) continue;
          old = std::move(value);
          return;
        }
      }
    } else if (place.kind == Expression::kAttribute) {
      const JinjaValue object = evaluate(*place.children[0], from);
      if (object.is(Kind::kNamespace)) {
        for (auto& [key, old] : object.as_namespace().members) {
          if (key != place.name) continue;
          old = std::move(value);
          return;
        }
      }
    }
    jinja_fail("only a list in a variable or a namespace can be changed");
  }

  static JinjaValue call_value(const JinjaValue& function, const std::string& name,
                               const JinjaArguments& arguments) {
    if (!function.is(Kind::kFunction)) {
      jinja_fail("'" + name + "' is " + function.type_name() + " and cannot be called");
    }
    return function.as_function()(arguments);
  }

  JinjaValue evaluate(const JinjaExpression& node, const JinjaScopePtr& scope) {
    const Step step(*this);
    const auto child = [&](std::size_t i) { return evaluate(*node.children[i], scope); };
    switch (node.kind) {
      case Expression::kLiteral:
        return node.literal;
      case Expression::kName:
        return lookup(node.name, scope);
      case Expression::kList:
      case Expression::kTuple:
        return evaluate_list(node, scope);
      case Expression::kDict:
        return evaluate_dict(node, scope);
      case Expression::kAttribute:
        return jinja_attribute(child(0), node.name);
      case Expression::kItem:
        return jinja_item(child(0), child(1));
      case Expression::kSlice:
        return evaluate_slice(node, scope);
      case Expression::kCall:
        return call(node, scope, evaluate_arguments(node, scope));
      case Expression::kFilter:
        return jinja_filter(node.name, input_of(node, scope), evaluate_arguments(node, scope),
                            budget_);
      case Expression::kTest:
        return JinjaValue::boolean(
            jinja_test(node.name, child(0), evaluate_arguments(node, scope)));
      case Expression::kNot:
        return JinjaValue::boolean(!child(0).truthy());
      case Expression::kNegative:
        return jinja_binary("-", JinjaValue::integer(0), child(0), budget_);
      case Expression::kBinary: {
        const JinjaValue left = child(0);
        return jinja_binary(node.name, left, child(1), budget_);
      }
      case Expression::kCompare:
        return JinjaValue::boolean(compare(node, scope));
      case Expression::kAnd: {
        JinjaValue left = child(0);
        return left.truthy() ? child(1) : left;
      }
      case Expression::kOr: {
        JinjaValue left = child(0);
        return left.truthy() ? left : child(1);
      }
      case Expression::kConcat:
        return concatenate(node, scope);
      case Expression::kConditional:
        if (child(1).truthy()) return child(0);
        return node.children[2] ? child(2) : JinjaValue::undefined("");
    }
    return {};
  }

  // A filter of a {% filter %} or {% set %} block reads the block's text.
  JinjaValue input_of(const JinjaExpression& filter, const JinjaScopePtr& scope) {
    return filter.children[0] ? evaluate(*filter.children[0], scope) : block_inputs_.back();
  }

  JinjaValue evaluate_list(const JinjaExpression& node, const JinjaScopePtr& scope) {
    JinjaValue::List items;
    for (const auto& item : node.children) items.push_back(evaluate(*item, scope));
    return node.kind == Expression::kTuple ? JinjaValue::tuple(std::move(items))
                                           : JinjaValue::list(std::move(items));
  }

  JinjaValue evaluate_dict(const JinjaExpression& node, const JinjaScopePtr& scope) {
    JinjaValue::Dict members;
    for (std::size_t i = 0; i < node.children.size(); i += 2) {
      JinjaValue key = evaluate(*node.children[i], scope);
      JinjaValue value = evaluate(*node.children[i + 1], scope);
      const auto same = std::find_if(members.begin(), members.end(), [&](const auto& member) {
        return jinja_equal(member.first, key);
      });
      if (same != members.end()) {
        same->second = std::move(value);
      } else {
        members.emplace_back(std::move(key), std::move(value));
      }
    }
    return JinjaValue::dict(std::move(members));
  }

  JinjaValue evaluate_slice(const JinjaExpression& node, const JinjaScopePtr& scope) {
    JinjaValue parts[3];
    const JinjaValue* given[3] = {};
    const JinjaValue object = evaluate(*node.children[0], scope);
    for (std::size_t i = 0; i < 3; ++i) {
      if (!node.children[i + 1]) continue;
      parts[i] = evaluate(*node.children[i + 1], scope);
      given[i] = &parts[i];
    }
    return jinja_slice(object, given[0], given[1], given[2], budget_);
  }

  JinjaValue concatenate(const JinjaExpression& node, const JinjaScopePtr& scope) {
    MarkedText text;
    for (const auto& part : node.children) {
      text.append(evaluate(*part, scope).to_text());
      budget_.charge_bytes(text.size());
    }
    return JinjaValue::string(std::move(text));
  }

  bool compare(const JinjaExpression& node, const JinjaScopePtr& scope) {
    JinjaValue left = evaluate(*node.children[0], scope);
    for (std::size_t i = 0; i < node.operators.size(); ++i) {
      JinjaValue right = evaluate(*node.children[i + 1], scope);
      if (!jinja_compare(node.operators[i], left, right)) return false;
      left = std::move(right);
    }
    return true;
  }

  const std::tm now_;
  JinjaBudget budget_;
  std::vector<std::shared_ptr<JinjaValue::Namespace>> namespaces_;
  std::vector<JinjaValue> block_inputs_;
  int depth_ = 0;
  int line_ = 0;
};

}  // namespace

MarkedText run_jinja(const JinjaBody& body, JinjaVariables variables, const std::tm& now,
                     const JinjaLimits& limits, std::string_view source) {
  Interpreter interpreter(now, limits);
  try {
    return interpreter.run(body, std::move(variables));
  } catch (const JinjaFailure& failure) {
    throw Error(ErrorKind::kInvalidArgument, std::string(source) + ": line " +
                                                 std::to_string(interpreter.line()) + ": " +
                                                 failure.cause);
  }
}

}  // namespace coppice
