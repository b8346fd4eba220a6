// Kimi's tool calls out of a streamed answer, as it streams: content, then per call its id and
// name, then its arguments piece by piece. What was given out is never taken back, and every
// delta costs time in its own length only. One parser per choice; not thread-safe.
//
// Rules. Text before, between and behind sections is content, in its place; white space alone
// beside a section is dropped. A call ends at its end mark, at the next call, at the section's end
// or with the stream. No arguments are "{}". A name is the id without "functions." in front and
// ":digits" behind; an id of another form, or one used before, is made anew as
// "functions.NAME:INDEX", the form the model was trained on. A call without a name is none: its
// arguments are content. Control tokens that mean nothing here are dropped, except inside
// arguments.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_set>
#include <vector>

#include "text/output_marks.h"

namespace coppice {

struct ToolEvent {
  enum class Kind {
    kContent,    // text
    kCallBegin,  // call, id, name
    kArguments,  // call, text
    kCallEnd,    // call; complete = false when the stream ended inside of it
  };
  Kind kind;
  std::size_t call = 0;  // index within this answer
  std::string id, name, text;
  bool complete = true;
};

class ToolParser {
 public:
  // `first_index`: number of tool calls in the conversation so far, for ids made anew.
  explicit ToolParser(std::size_t first_index = 0) : first_index_(first_index) {}

  std::vector<ToolEvent> add(const OutputPiece& piece);
  // The end of the stream: closes an open call. Call once.
  std::vector<ToolEvent> finish();
  // finish_reason is "tool_calls" exactly when this is not 0.
  std::size_t num_calls() const { return num_calls_; }

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
