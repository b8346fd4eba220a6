// Variables of a running template, frame by frame.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja_value.h"

namespace coppice {

using JinjaVariables = std::vector<std::pair<std::string, JinjaValue>>;

// One frame. Loops, macros and blocks open a frame; "if" does not.
struct JinjaScope {
  JinjaVariables variables;
  std::shared_ptr<JinjaScope> parent;

  void set(const std::string& name, JinjaValue value) {
    for (auto& [key, old] : variables) {
      if (key == name) {
        old = std::move(value);
        return;
      }
    }
    variables.emplace_back(name, std::move(value));
  }
};
using JinjaScopePtr = std::shared_ptr<JinjaScope>;

// A frame that forgets its variables when left: macros hold their frame, and a macro kept as a
// variable of that frame would keep both alive for ever.
class JinjaFrame {
 public:
  explicit JinjaFrame(JinjaScopePtr parent) : scope_(std::make_shared<JinjaScope>()) {
    scope_->parent = std::move(parent);
  }
  ~JinjaFrame() { scope_->variables.clear(); }
  JinjaFrame(const JinjaFrame&) = delete;
  JinjaFrame& operator=(const JinjaFrame&) = delete;
  const JinjaScopePtr& scope() const { return scope_; }

 private:
  JinjaScopePtr scope_;
};

}  // namespace coppice
