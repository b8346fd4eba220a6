#include "server/generation.h"

#include <mutex>

#include "sampling/token_constraint.h"

namespace coppice {
namespace {

// Shared by the submissions of one HTTP request; lives on the thread of outputs.
class Run final : public OutputReceiver, public std::enable_shared_from_this<Run> {
 public:
  Run(const GenerationContext& context, std::shared_ptr<GenerationClient> client)
      : context_(context), client_(std::move(client)) {}

  Submission add(GenerationChoice choice) {
    const std::size_t index = choices_.size();
    choices_.push_back({.text = OutputText(context_.model->tokenizer, std::move(choice.text)),
                        .max_tokens = choice.request.sampling.max_tokens,
                        .constraints = names_of_constraints(choice.request.sampling)});
    ++left_;
    const auto self = shared_from_this();
    return {
        .request = std::move(choice.request),
        .on_output =
            [self, index](const RequestOutput& output) {
              self->context_.outputs->post(self, index, {output, SteadyClock().now_ns()});
            },
        .on_failure =
            [self](const ApiError& error) { self->context_.outputs->post_failure(self, error); }};
  }

  void observe(std::size_t index, std::int64_t emitted_ns, std::int64_t num_tokens) override {
    Choice& choice = choices_[index];
    const std::int64_t interval_ns = choice.last_ns == 0 ? -1 : emitted_ns - choice.last_ns;
    context_.metrics->observe_step(interval_ns < 0 ? -1 : static_cast<double>(interval_ns) / 1e9,
                                   num_tokens);
    choice.last_ns = emitted_ns;
  }

  void receive(std::size_t index, const EmittedOutput& output) override {
    Choice& choice = choices_[index];
    if (choice.ended) return;  // behind a stop string
    const OutputStep step = choice.text.add(output.view());
    if (step.end_reason == EndReason::kNone) {
      if (!failed_) client_->on_step(index, step, output.stats);
      return;
    }
    choice.ended = true;
    if (step.keep) context_.loop->finish(output.id, *step.keep);
    RequestStats stats = output.stats;
    stats.num_output_tokens = choice.text.num_tokens();
    stats.end_ns = output.emitted_ns;
    context_.metrics->observe_end(stats, choice.max_tokens, name_of(step.end_reason));
    if (step.end_reason == EndReason::kError)
      return receive_failure(
          ApiError(500, "no token could be chosen: the model's logits held NaN or infinity"));
    if (step.end_reason == EndReason::kDeadEnd)
      return receive_failure(
          ApiError(400, "no token may follow the " + std::to_string(stats.num_output_tokens) +
                            " tokens of output so far: " + choice.constraints + " leave none"));
    if (failed_) return;
    client_->on_step(index, step, stats);
    if (--left_ == 0) client_->on_end();
  }

  void receive_failure(const ApiError& error) override {
    if (std::exchange(failed_, true)) return;
    client_->on_failure(error);
  }

 private:
  struct Choice {
    OutputText text;
    std::int64_t max_tokens = 0;
    std::string constraints;  // for a dead end
    std::int64_t last_ns = 0;
    bool ended = false;
  };

  GenerationContext context_;
  std::shared_ptr<GenerationClient> client_;
  std::vector<Choice> choices_;
  std::size_t left_ = 0;
  bool failed_ = false;
};

// A request until its client leaves: before it is submitted and after. Thread-safe.
class PendingRun {
 public:
  PendingRun(const GenerationContext& context, std::vector<GenerationChoice> choices,
             std::shared_ptr<GenerationClient> client)
      : context_(context), choices_(std::move(choices)), client_(std::move(client)) {}

  std::optional<GrammarRequest> grammar() const { return choices_.front().grammar; }

  void submit(const std::shared_ptr<const Grammar>& grammar) {
    const std::lock_guard lock(mutex_);
    if (left_) return;
    const auto run = std::make_shared<Run>(context_, client_);
    std::vector<Submission> submissions;
    for (GenerationChoice& choice : choices_) {
      choice.request.sampling.structured.grammar = grammar;
      submissions.push_back(run->add(std::move(choice)));
    }
    tickets_ = context_.loop->submit(std::move(submissions));
  }

  void fail(const ApiError& error) const { client_->on_failure(error); }

  void leave() {
    const std::lock_guard lock(mutex_);
    left_ = true;
    if (!tickets_.empty()) context_.loop->cancel(tickets_);
    context_.metrics->observe_abort();
  }

 private:
  GenerationContext context_;
  std::vector<GenerationChoice> choices_;
  std::shared_ptr<GenerationClient> client_;
  std::mutex mutex_;
  std::vector<Ticket> tickets_;
  bool left_ = false;
};

double milliseconds(std::int64_t from_ns, std::int64_t to_ns) {
  return static_cast<double>(to_ns - from_ns) / 1e6;
}

}  // namespace

Json usage_json(const Usage& usage) {
  Json json = Json::object({{"prompt_tokens", usage.prompt_tokens},
                            {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
                            {"completion_tokens", usage.completion_tokens}});
  json["prompt_tokens_details"] = Json::object({{"cached_tokens", usage.cached_tokens}});
  json["completion_tokens_details"] = Json::object({{"reasoning_tokens", usage.reasoning_tokens}});
  return json;
}

Json timings_json(const RequestStats& stats) {
  const double prompt_ms = milliseconds(stats.arrival_ns, stats.first_token_ns);
  const double predicted_ms = milliseconds(stats.first_token_ns, stats.end_ns);
  const auto per_second = [](std::int64_t count, double ms) {
    return ms > 0 ? static_cast<double>(count) * 1000 / ms : 0.0;
  };
  return Json::object({{"cache_n", stats.num_cached_tokens},
                       {"prompt_n", stats.num_prompt_tokens - stats.num_cached_tokens},
                       {"prompt_ms", prompt_ms},
                       {"prompt_per_second", per_second(stats.num_prompt_tokens, prompt_ms)},
                       {"predicted_n", stats.num_output_tokens},
                       {"predicted_ms", predicted_ms},
                       {"predicted_per_second", per_second(stats.num_output_tokens, predicted_ms)},
                       {"draft_n", stats.num_draft_tokens},
                       {"draft_n_accepted", stats.num_accepted_tokens},
                       {"rounds", stats.num_rounds}});
}

void generate(const GenerationContext& context, std::vector<GenerationChoice> choices,
              std::shared_ptr<GenerationClient> client, HttpResponder& responder) {
  const auto pending = std::make_shared<PendingRun>(context, std::move(choices), std::move(client));
  const std::optional<GrammarRequest> grammar = pending->grammar();
  if (!grammar) {
    pending->submit(nullptr);
  } else {
    if (context.grammars == nullptr)
      throw ApiError(501, grammar->field + ": the model has no stop ids, so no output could end",
                     grammar->field);
    context.grammars->compile(
        *grammar, [pending](const std::shared_ptr<const Grammar>& compiled, const ApiError* error) {
          if (error != nullptr) return pending->fail(*error);
          try {
            pending->submit(compiled);
          } catch (const std::exception& failure) {
            pending->fail(to_api_error(failure));
          }
        });
  }
  responder.on_disconnect([pending] { pending->leave(); });
}

}  // namespace coppice
