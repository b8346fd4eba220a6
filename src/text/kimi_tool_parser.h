// Kimi's tool calls.
//
// Rules. Text before, between and behind sections is content, in its place; white space alone
// beside a section is dropped. A call ends at its end mark, at the next call, at the section's end
// or with the stream. No arguments are "{}". A name is the id without "functions." in front and
// ":digits" behind; an id of another form, or one used before, is made anew as
// "functions.NAME:INDEX", the form the model was trained on. A call without a name is none: its
// arguments are content. Control tokens that mean nothing here are dropped, except inside
// arguments.
#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include "text/tool_parser.h"

namespace coppice {

class KimiToolParser final : public ToolParser {
 public:
  explicit KimiToolParser(std::size_t first_index = 0) : first_index_(first_index) {}

  std::vector<ToolEvent> add(const OutputPiece& piece) override;
  std::vector<ToolEvent> finish() override;
  std::size_t num_calls() const override { return num_calls_; }

 private:
  enum class State { kContent, kSection, kId, kArguments };
  void add_mark(OutputMark mark);
  void add_content(const std::string& text);
  void add_arguments(const std::string& text);
  void begin_call();
  void begin_arguments();
  void end_call(bool complete);
  std::string unused_id(const std::string& id, const std::string& name);

  State state_ = State::kContent;
  std::vector<ToolEvent> events_;
  std::unordered_set<std::string> used_ids_;
  std::string id_;      // of the call that is being read
  std::string spaces_;  // white space held back: before content, or within arguments
  std::size_t num_calls_ = 0;
  std::size_t first_index_;
  bool content_begun_ = false;    // since the start or the last section
  bool arguments_begun_ = false;  // something but white space was given out
  bool named_ = false;            // the call that is being read has a name
};

}  // namespace coppice
