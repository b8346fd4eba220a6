#include "server/output_text.h"

#include <algorithm>

namespace coppice {

OutputText::OutputText(const Tokenizer& tokenizer, OutputTextOptions options)
    : tokenizer_(&tokenizer),
      options_(std::move(options)),
      detokenizer_(tokenizer),
      stop_(options_.stop) {}

OutputStep OutputText::add(const RequestOutput& output) {
  OutputStep step;
  step.end_reason = output.end_reason;
  step.prompt_logprobs.assign(output.prompt_logprobs.begin(), output.prompt_logprobs.end());
  for (std::size_t i = 0; i < output.token_ids.size(); ++i) {
    const std::int32_t id = output.token_ids[i];
    const bool is_stop = output.stop_token_id && i + 1 == output.token_ids.size();
    ++num_tokens_;
    step.token_ids.push_back(id);
    if (!output.logprobs.empty()) step.logprobs.push_back(output.logprobs[i]);
    add_token(id, !is_stop || options_.include_stop, step);
    if (!step.keep) continue;
    step.end_reason = EndReason::kStop;
    return step;
  }
  if (step.end_reason == EndReason::kNone) return step;
  finish(step);
  const auto& asked = options_.stop_token_ids;
  if (output.stop_token_id && !step.keep &&
      std::find(asked.begin(), asked.end(), *output.stop_token_id) != asked.end())
    step.stop_reason = static_cast<std::int64_t>(*output.stop_token_id);
  return step;
}

void OutputText::add_token(std::int32_t id, bool shown, OutputStep& step) {
  if (!shown) return;
  if (!tokenizer_->is_added(id)) return add_piece({detokenizer_.add(id), false}, step);
  const bool hidden = options_.skip_special_tokens && tokenizer_->is_special(id);
  if (!hidden) add_piece({detokenizer_.finish(), false}, step);
  if (step.keep) return;
  OutputPiece mark{std::string(tokenizer_->token_bytes(id)), true, hidden};
  if (!hidden) return add_piece(std::move(mark), step);
  held_.push_back(std::move(mark));  // no text: a stop string may lie around it
  release(0, step);
}

void OutputText::add_piece(OutputPiece piece, OutputStep& step) {
  if (piece.text.empty() || step.keep) return;
  const std::size_t size = piece.text.size();
  const std::string text = piece.text;
  held_.push_back(std::move(piece));
  if (options_.stop.empty() || num_tokens_ < options_.min_tokens) return release(size, step);
  const StopStrings::Result result = stop_.push(text);
  release(result.text.size(), step);
  if (!result.stopped) return;
  if (options_.include_stop) release(result.matched.size(), step);
  step.keep = num_tokens_;
  step.stop_reason = result.matched;
}

void OutputText::release(std::size_t num_bytes, OutputStep& step) {
  while (!held_.empty()) {
    OutputPiece& front = held_.front();
    if (front.hidden) {
      step.pieces.push_back(std::move(front));
      held_.pop_front();
      continue;
    }
    const std::size_t left = front.text.size() - taken_;
    const std::size_t now = std::min(left, num_bytes);
    // A mark that was cut, by a stop string that begins inside of it, is no mark any more.
    if (front.is_mark && now < left) {
      taken_ += now;
      return;
    }
    if (!front.is_mark && now == 0) return;
    if (front.is_mark)
      step.pieces.push_back(front);
    else
      step.pieces.push_back({front.text.substr(taken_, now), false});
    num_bytes -= now;
    taken_ += now;
    if (taken_ < front.text.size()) return;
    held_.pop_front();
    taken_ = 0;
  }
}

void OutputText::finish(OutputStep& step) {
  add_piece({detokenizer_.finish(), false}, step);
  if (step.keep)
    step.end_reason = EndReason::kStop;
  else
    release(stop_.flush().size(), step);
}

}  // namespace coppice
