#include "server/chat_output.h"

#include <utility>

namespace coppice {
namespace {

void append(std::vector<ChatPart>& parts, ChatPart part) {
  const bool joins = !parts.empty() && parts.back().kind == part.kind &&
                     parts.back().call == part.call && part.kind != ChatPart::Kind::kCallBegin;
  if (joins)
    parts.back().text += part.text;
  else
    parts.push_back(std::move(part));
}

}  // namespace

ChatOutput::ChatOutput(const ChatOutputOptions& options)
    : options_(options), reasoning_(options.in_reasoning) {
  if (options.tools.format != ToolFormat::kNone)
    tools_ = make_tool_parser(options.tools, options.first_call_index);
}

std::vector<ChatPart> ChatOutput::add(const OutputStep& step) {
  std::vector<ChatPart> parts;
  for (const OutputPiece& piece : step.pieces) add_piece(piece, parts);
  if (step.end_reason != EndReason::kNone && tools_) add_events(tools_->finish(), parts);
  return parts;
}

void ChatOutput::add_piece(const OutputPiece& piece, std::vector<ChatPart>& parts) {
  // Special tokens are the parsers' first; what means nothing to them is left out if so asked.
  if (piece.hidden && mark_of(piece) == OutputMark::kNone) return;
  ReasoningParser::Delta delta;
  if (options_.parse_reasoning)
    delta = reasoning_.add(piece);
  else
    delta.rest = {piece};
  if (!delta.reasoning.empty())
    append(parts, {.kind = ChatPart::Kind::kReasoning,
                   .text = std::move(delta.reasoning),
                   .id = {},
                   .name = {}});
  for (const OutputPiece& rest : delta.rest) {
    if (tools_)
      add_events(tools_->add(rest), parts);
    else if (!rest.hidden)
      append(parts, {.kind = ChatPart::Kind::kContent, .text = rest.text, .id = {}, .name = {}});
  }
}

void ChatOutput::add_events(const std::vector<ToolEvent>& events, std::vector<ChatPart>& parts) {
  for (const ToolEvent& event : events) {
    ChatPart part{.kind = ChatPart::Kind::kContent,
                  .text = event.text,
                  .call = event.call,
                  .id = event.id,
                  .name = event.name};
    if (event.kind == ToolEvent::Kind::kCallBegin) part.kind = ChatPart::Kind::kCallBegin;
    if (event.kind == ToolEvent::Kind::kArguments) part.kind = ChatPart::Kind::kArguments;
    if (event.kind == ToolEvent::Kind::kCallEnd && !event.complete) continue;  // cut: still open
    if (event.kind == ToolEvent::Kind::kCallEnd) part.kind = ChatPart::Kind::kCallEnd;
    if (event.kind == ToolEvent::Kind::kContent && event.text.empty()) continue;
    append(parts, std::move(part));
  }
}

}  // namespace coppice
