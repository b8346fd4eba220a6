// Reads {"name": NAME, "arguments": VALUE} character by character, as a model writes it: says when
// the name is known and gives out the value's text as it comes. "parameters" stands for
// "arguments"; the two may come in either order, other members are skipped. Not thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace coppice {

class JsonCallReader {
 public:
  enum class State {
    kOpen,    // nothing wrong so far
    kDone,    // the object is closed
    kBroken,  // not such an object
  };

  // The character is the reader's unless the state was not kOpen. The first must be '{'.
  void add(char c);
  State state() const { return state_; }
  // Inside a string everything is text.
  bool in_string() const { return in_string_; }

  // The name, once: when it is complete and the value of the arguments has begun, or the object is
  // closed without any and `bare` are calls too.
  std::optional<std::string> take_name(bool bare);
  // What came of the arguments since the last time; only behind take_name.
  std::string take_arguments();
  bool has_arguments() const { return has_arguments_; }

 private:
  // What the next character that is no space must begin or be.
  enum class Expect { kObject, kKeyOrEnd, kKey, kColon, kValue, kCommaOrEnd };
  void add_outside(char c);
  void begin_value(char c);
  void add_to_value(char c);
  void end_value();

  State state_ = State::kOpen;
  Expect expect_ = Expect::kObject;
  bool in_string_ = false, escaped_ = false;
  bool in_value_ = false, in_scalar_ = false;
  int depth_ = 0;  // of brackets inside the value
  std::string key_;
  std::string name_text_;  // as written, quotes included
  std::optional<std::string> name_;
  std::string arguments_;
  bool has_arguments_ = false, name_given_ = false;
};

}  // namespace coppice
