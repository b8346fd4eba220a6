// Tool calls that are JSON objects: within <tool_call> tags (Hermes, Qwen) or as the whole answer
// (Llama 3).
//
// Rules. Text that has not shown itself to be a call is held back, and is content as it stands,
// tags included, once it cannot become one or the stream ends. It is a call when it has a name and
// arguments; in a tag the name alone is enough, with arguments "{}". In a tag everything between
// the object and the closing tag is dropped, and white space alone beside a tag too. Without tags
// the answer must begin with an object, a list of objects or <|python_tag|>; objects follow each
// other behind spaces, commas or semicolons, and whatever else follows is content to the end.
#pragma once

#include <string>
#include <vector>

#include "text/json_call_reader.h"
#include "text/tool_parser.h"

namespace coppice {

class JsonToolParser final : public ToolParser {
 public:
  JsonToolParser(const ToolSyntax& syntax, std::size_t first_index);

  std::vector<ToolEvent> add(const OutputPiece& piece) override;
  std::vector<ToolEvent> finish() override;
  std::size_t num_calls() const override { return num_calls_; }

 private:
  enum class State {
    kStart,    // before anything but white space
    kBetween,  // no tags: behind a call
    kContent,
    kObject,   // reading what may be a call, or is one
    kTagRest,  // behind the object, before the closing tag
  };
  void add_piece(const OutputPiece& piece);
  void add_mark(const OutputPiece& piece);
  void add_text(std::string_view text);
  void add_char(char c);
  void begin_object();
  void read(char c);
  void end_call(bool complete);
  void give_up();
  void give_content(const std::string& text);

  const bool tagged_;
  const bool scans_tags_;
  const std::size_t first_index_;
  MarkScanner scanner_;
  State state_ = State::kStart;
  JsonCallReader reader_;
  std::vector<ToolEvent> events_;
  std::string held_;    // of what may be a call; white space before content
  bool begun_ = false;  // the call that is being read was given out
  bool has_arguments_ = false;
  std::size_t num_calls_ = 0;
};

}  // namespace coppice
