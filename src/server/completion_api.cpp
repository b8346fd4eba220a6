#include "server/completion_api.h"

#include <ctime>

#include "server/event_stream.h"
#include "server/token_logprobs.h"

namespace coppice {
namespace {

constexpr std::int64_t kDefaultMaxTokens = 16;
constexpr std::size_t kMaxPrompts = 1024;

struct Prompt {
  std::string text;  // as given, or decoded
  std::vector<std::int32_t> token_ids;
};

// How prompts become ids.
struct PromptReading {
  bool decode = false;  // the text of ids is wanted
  bool add_special_tokens = true;
};

struct CompletionRequest {
  CommonRequest common;
  std::vector<Prompt> prompts;
  bool echo = false;
  bool returns_prompt_logprobs = false;
  bool drops_output = false;  // max_tokens 0: the prompt's log-probabilities alone are wanted
};

Prompt read_prompt(const JsonField& field, const PromptReading& how, const ServedModel& model) {
  Prompt prompt;
  if (field.value().is_string()) {
    prompt.text = field.as<std::string>();
    // vLLM recognises control tokens in plain prompts.
    prompt.token_ids = how.add_special_tokens ? model.tokenizer.encode_prompt(prompt.text, true)
                                              : model.tokenizer.encode(prompt.text, true);
    return prompt;
  }
  if (!field.value().is_array()) field.fail("must be a string or token ids, or a list of those");
  prompt.token_ids = token_ids_of(field, model);
  if (how.decode) prompt.text = model.tokenizer.decode(prompt.token_ids);
  return prompt;
}

std::vector<Prompt> read_prompts(const JsonField& body, bool echo, const ServedModel& model) {
  const JsonField field = body.at("prompt");
  const PromptReading how = {.decode = echo,
                             .add_special_tokens = body.get<bool>("add_special_tokens", true)};
  const bool is_list = field.value().is_array();
  const bool is_list_of_prompts =
      is_list && field.value().size() > 0 && !field.value().as_array()[0].is_number();
  std::vector<Prompt> prompts;
  if (is_list && field.value().size() == 0) field.fail("is empty");
  if (!is_list_of_prompts) {
    prompts.push_back(read_prompt(field, how, model));
    return prompts;
  }
  if (field.value().size() > kMaxPrompts)
    field.fail("holds more than " + std::to_string(kMaxPrompts) + " prompts");
  for (const JsonField& element : field.elements())
    prompts.push_back(read_prompt(element, how, model));
  return prompts;
}

CompletionRequest parse_completion_request(const JsonField& body, const ServedModel& model) {
  check_model(body, model);
  CompletionRequest request;
  request.common = parse_common(body, model);
  request.echo = body.get<bool>("echo", false);
  if (const auto logprobs = body.find("logprobs"))
    request.common.sampling.logprobs = logprobs->as<std::int64_t>();
  if (!body.get("suffix", "").empty())
    throw ApiError(400, "suffix is not supported: the model does not fill in the middle", "suffix");
  SamplingParams& sampling = request.common.sampling;
  request.returns_prompt_logprobs = sampling.prompt_logprobs.has_value();
  if (request.echo && sampling.logprobs)
    sampling.prompt_logprobs = std::max(sampling.prompt_logprobs.value_or(0), *sampling.logprobs);
  request.prompts = read_prompts(body, request.echo, model);
  std::int64_t fits_all = model.max_request_len;
  for (Prompt& prompt : request.prompts) {
    const std::size_t given = prompt.token_ids.size();
    settle_length(request.common, prompt.token_ids, kDefaultMaxTokens, model, "prompt");
    if (request.echo && prompt.token_ids.size() < given)  // what was cut off is not echoed
      prompt.text = model.tokenizer.decode(prompt.token_ids);
    fits_all = std::min(fits_all, request.common.sampling.max_tokens);
  }
  sampling.max_tokens = fits_all;
  request.drops_output = fits_all == 0 && sampling.prompt_logprobs.has_value();
  if (request.drops_output) {
    sampling.max_tokens = 1;  // the engine's least
    sampling.min_tokens = 0;
    sampling.validate(model.vocab_size);
  }
  return request;
}

struct CompletionChoice {
  std::string text;
  CompletionLogprobs logprob_writer;
  Json logprobs, prompt_logprobs;
  std::vector<std::int32_t> token_ids;
  std::string finish_reason;
  Json stop_reason;
  bool begun = false;
};

// Appends every list of one log-probability object to those of another.
void append_lists(Json& to, const Json& from) {
  for (const auto& [key, values] : from.as_object())
    for (const Json& value : values.as_array()) to[key].push_back(value);
}

class CompletionClient final : public GenerationClient {
 public:
  CompletionClient(ApiContext context, CompletionRequest request,
                   std::shared_ptr<HttpResponder> responder)
      : context_(std::move(context)),
        request_(std::move(request)),
        responder_(std::move(responder)),
        created_(std::time(nullptr)) {
    for (const Prompt& prompt : request_.prompts) {
      usage_.prompt_tokens += std::ssize(prompt.token_ids);
      for (std::int64_t i = 0; i < request_.common.n; ++i)
        choices_.push_back(CompletionChoice{
            .text = {},
            .logprob_writer = CompletionLogprobs(context_.generation.model->tokenizer,
                                                 request_.common.return_tokens_as_token_ids, 0),
            .logprobs = {},
            .prompt_logprobs = {},
            .token_ids = {},
            .finish_reason = {},
            .stop_reason = {}});
    }
  }

  void on_step(std::size_t index, const OutputStep& step, const RequestStats& stats) override;
  void on_end() override;
  void on_failure(const ApiError& error) override;
  std::size_t num_choices() const { return choices_.size(); }

 private:
  const Prompt& prompt_of(std::size_t index) const {
    return request_.prompts[index / static_cast<std::size_t>(request_.common.n)];
  }
  Json answer() const;
  Json prompt_part(std::size_t index, const OutputStep& step);
  Json entry_of(std::size_t index, std::string text, Json logprobs,
                const std::vector<std::int32_t>& ids, bool last) const;
  void stream_step(std::size_t index, const OutputStep& step, std::string text, Json logprobs);

  ApiContext context_;
  CompletionRequest request_;
  std::shared_ptr<HttpResponder> responder_;
  std::time_t created_;
  std::vector<CompletionChoice> choices_;
  Usage usage_;
  RequestStats last_stats_;
  bool stream_begun_ = false;
};

// What the prompt adds in front of the first token's step.
Json CompletionClient::prompt_part(std::size_t index, const OutputStep& step) {
  CompletionChoice& choice = choices_[index];
  const std::vector<std::int32_t>& ids = prompt_of(index).token_ids;
  if (request_.returns_prompt_logprobs)
    choice.prompt_logprobs =
        prompt_logprobs_json(context_.generation.model->tokenizer, ids, step.prompt_logprobs);
  const bool wanted = request_.echo && request_.common.sampling.logprobs;
  return wanted ? choice.logprob_writer.add_prompt(ids, step.prompt_logprobs) : Json();
}

void CompletionClient::on_step(std::size_t index, const OutputStep& given,
                               const RequestStats& stats) {
  CompletionChoice& choice = choices_[index];
  OutputStep step = given;
  if (request_.drops_output) {
    step.pieces.clear();
    step.token_ids.clear();
    step.logprobs.clear();
    step.end_reason = EndReason::kLength;
    step.stop_reason = Json();
  }
  std::string text;
  Json logprobs;
  if (!std::exchange(choice.begun, true)) {
    if (request_.echo) text = prompt_of(index).text;
    logprobs = prompt_part(index, step);
  }
  for (const OutputPiece& piece : step.pieces)
    if (!piece.hidden) text += piece.text;
  usage_.completion_tokens += std::ssize(step.token_ids);
  usage_.cached_tokens = std::max(usage_.cached_tokens, stats.num_cached_tokens);
  last_stats_ = stats;
  if (!step.logprobs.empty())
    append_lists(logprobs, choice.logprob_writer.add(step.token_ids, step.logprobs));
  if (step.end_reason != EndReason::kNone) {
    choice.finish_reason = name_of(step.end_reason);
    choice.stop_reason = step.stop_reason;
  }
  if (request_.common.stream) return stream_step(index, step, std::move(text), std::move(logprobs));
  choice.text += text;
  choice.token_ids.insert(choice.token_ids.end(), step.token_ids.begin(), step.token_ids.end());
  if (!logprobs.is_null()) append_lists(choice.logprobs, logprobs);
}

Json CompletionClient::answer() const {
  return Json::object({{"id", "cmpl-" + request_.common.id},
                       {"object", "text_completion"},
                       {"created", static_cast<std::int64_t>(created_)},
                       {"model", context_.generation.model->name()},
                       {"system_fingerprint", context_.fingerprint}});
}

Json CompletionClient::entry_of(std::size_t index, std::string text, Json logprobs,
                                const std::vector<std::int32_t>& ids, bool last) const {
  const CompletionChoice& choice = choices_[index];
  Json entry = Json::object({{"index", static_cast<std::int64_t>(index)},
                             {"text", std::move(text)},
                             {"logprobs", std::move(logprobs)},
                             {"finish_reason", last ? Json(choice.finish_reason) : Json()},
                             {"stop_reason", last ? choice.stop_reason : Json()}});
  if (request_.returns_prompt_logprobs) entry["prompt_logprobs"] = choice.prompt_logprobs;
  if (request_.common.return_token_ids) entry["token_ids"] = token_ids_json(ids);
  return entry;
}

void CompletionClient::stream_step(std::size_t index, const OutputStep& step, std::string text,
                                   Json logprobs) {
  const bool last = step.end_reason != EndReason::kNone;
  if (text.empty() && logprobs.is_null() && !last) return;
  Json chunk = answer();
  chunk["choices"] =
      Json::array({entry_of(index, std::move(text), std::move(logprobs), step.token_ids, last)});
  if (request_.common.continuous_usage) chunk["usage"] = usage_json(usage_);
  if (!std::exchange(stream_begun_, true)) begin_events(*responder_);
  send_event(*responder_, chunk);
}

void CompletionClient::on_end() {
  Json body = answer();
  if (request_.common.stream) {
    if (request_.common.include_usage) {
      body["choices"] = Json::array();
      body["usage"] = usage_json(usage_);
      if (context_.timings) body["timings"] = timings_json(last_stats_);
      send_event(*responder_, body);
    }
    return end_events(*responder_);
  }
  Json choices = Json::array();
  for (std::size_t i = 0; i < choices_.size(); ++i)
    choices.push_back(
        entry_of(i, choices_[i].text, choices_[i].logprobs, choices_[i].token_ids, true));
  body["choices"] = std::move(choices);
  body["usage"] = usage_json(usage_);
  if (context_.timings) body["timings"] = timings_json(last_stats_);
  send_json(*responder_, body);
}

void CompletionClient::on_failure(const ApiError& error) {
  if (!stream_begun_) return send_error(*responder_, error);
  send_event(*responder_, error_json(error));
  end_events(*responder_);
}

void answer_nothing(CompletionClient& client) {
  OutputStep step;
  step.end_reason = EndReason::kLength;
  for (std::size_t i = 0; i < client.num_choices(); ++i) client.on_step(i, step, {});
  client.on_end();
}

}  // namespace

void completions(const ApiContext& context, const HttpRequest& request,
                 const std::shared_ptr<HttpResponder>& responder) {
  const Json document = parse_body(request.body);
  CompletionRequest parsed =
      parse_completion_request(body_fields(document), *context.generation.model);
  const CommonRequest common = parsed.common;
  const bool nothing = common.sampling.max_tokens == 0;
  if (!nothing) context.generation.loop->require_room(std::ssize(parsed.prompts) * common.n);
  std::vector<GenerationChoice> choices;
  for (const Prompt& prompt : parsed.prompts)
    for (std::int64_t i = 0; i < common.n && !nothing; ++i)
      choices.emplace_back(make_choice(common, prompt.token_ids, i)).grammar = common.grammar;
  const auto client = std::make_shared<CompletionClient>(context, std::move(parsed), responder);
  if (nothing) return answer_nothing(*client);
  if (common.stream) expect_events(*responder);
  generate(context.generation, std::move(choices), client, *responder);
}

}  // namespace coppice
