// What a client sees of an answer that passes through the reasoning and tool parsers, as the server
// chains them.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "text/reasoning_parser.h"
#include "text/tool_parser.h"

namespace coppice::testing {

struct Call {
  std::string id, name, arguments;
  bool ended = false, complete = true;
  friend bool operator==(const Call&, const Call&) = default;
};

// What a client has seen so far. Order of content and calls is kept in `order`.
struct Seen {
  std::string reasoning, content, order;
  std::vector<Call> calls;
  friend bool operator==(const Seen&, const Seen&) = default;
};

class Client {
 public:
  explicit Client(const ToolSyntax& syntax, bool thinking = true, std::size_t first_index = 0)
      : reasoning_(thinking), tools_(make_tool_parser(syntax, first_index)) {}

  void add_text(std::string_view text) {
    for (const OutputPiece& piece : scanner_.add(text)) add(piece);
  }
  void add(const OutputPiece& piece) {
    const ReasoningParser::Delta delta = reasoning_.add(piece);
    seen_.reasoning += delta.reasoning;
    for (const OutputPiece& rest : delta.rest) take(tools_->add(rest));
  }
  const Seen& finish() {
    for (const OutputPiece& piece : scanner_.finish()) add(piece);
    take(tools_->finish());
    return seen_;
  }
  const Seen& seen() const { return seen_; }
  int argument_events = 0;

 private:
  void take(const std::vector<ToolEvent>& events) {
    for (const ToolEvent& event : events) {
      switch (event.kind) {
        case ToolEvent::Kind::kContent:
          EXPECT_FALSE(event.text.empty());
          seen_.content += event.text;
          if (!seen_.order.ends_with('t')) seen_.order += 't';
          break;
        case ToolEvent::Kind::kCallBegin:
          EXPECT_EQ(event.call, seen_.calls.size());
          seen_.calls.push_back({event.id, event.name, "", false, true});
          seen_.order += 'c';
          break;
        case ToolEvent::Kind::kArguments:
          ASSERT_EQ(event.call + 1, seen_.calls.size());
          EXPECT_FALSE(event.text.empty());
          seen_.calls.back().arguments += event.text;
          ++argument_events;
          break;
        case ToolEvent::Kind::kCallEnd:
          ASSERT_EQ(event.call + 1, seen_.calls.size());
          EXPECT_FALSE(seen_.calls.back().ended);
          seen_.calls.back().ended = true;
          seen_.calls.back().complete = event.complete;
          break;
      }
    }
  }

  MarkScanner scanner_;
  ReasoningParser reasoning_;
  std::unique_ptr<ToolParser> tools_;
  Seen seen_;
};

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::size_t below(std::size_t n) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::size_t>(state_ >> 33) % n;
  }

 private:
  std::uint64_t state_;
};

inline bool is_prefix(const Seen& before, const Seen& after) {
  if (!after.reasoning.starts_with(before.reasoning)) return false;
  if (!after.content.starts_with(before.content) || !after.order.starts_with(before.order))
    return false;
  if (before.calls.size() > after.calls.size()) return false;
  for (std::size_t i = 0; i < before.calls.size(); ++i) {
    const Call &a = before.calls[i], &b = after.calls[i];
    if (a.id != b.id || a.name != b.name || !b.arguments.starts_with(a.arguments)) return false;
    if (a.ended && !(a == b)) return false;
  }
  return true;
}

}  // namespace coppice::testing
