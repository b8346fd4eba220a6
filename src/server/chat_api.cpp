#include "server/chat_api.h"

#include <ctime>

#include "server/event_stream.h"
#include "server/token_logprobs.h"

namespace coppice {
namespace {

// One choice's answer so far.
struct ChatChoice {
  ChatOutput output;
  std::string content, reasoning;
  Json tool_calls = Json::array();
  Json logprobs = Json::array();
  std::vector<std::int32_t> token_ids;
  std::string finish_reason;
  Json stop_reason;
  bool call_open = false;  // the last tool call's arguments are not complete
  bool begun = false;      // a chunk with the role went out
};

class ChatClient final : public GenerationClient {
 public:
  ChatClient(ApiContext context, ChatRequest request, ChatPrompt prompt,
             std::shared_ptr<HttpResponder> responder)
      : context_(std::move(context)),
        request_(std::move(request)),
        prompt_(std::move(prompt)),
        responder_(std::move(responder)),
        created_(std::time(nullptr)) {
    for (std::int64_t i = 0; i < request_.common.n; ++i)
      choices_.push_back(ChatChoice{.output = ChatOutput(prompt_.output),
                                    .content = {},
                                    .reasoning = {},
                                    .token_ids = {},
                                    .finish_reason = {},
                                    .stop_reason = {}});
  }

  void on_step(std::size_t index, const OutputStep& step, const RequestStats& stats) override;
  void on_end() override;
  void on_failure(const ApiError& error) override;

  const ChatRequest& request() const { return request_; }

 private:
  bool streams() const { return request_.common.stream; }
  void count_usage(const ChatChoice& choice, const OutputStep& step, const RequestStats& stats);
  void finish_choice(ChatChoice& choice, const OutputStep& step) const;
  void collect(ChatChoice& choice, const ChatPart& part) const;
  void add_to_delta(Json& delta, const ChatPart& part) const;
  void stream_step(std::size_t index, const OutputStep& step, const std::vector<ChatPart>& parts);
  void send_chunk(std::size_t index, Json delta, const OutputStep* step, bool last);
  void put_reasoning(Json& message, const std::string& text) const;
  Json step_logprobs(const OutputStep& step) const;
  Json message_of(const ChatChoice& choice) const;
  Json answer(const char* object) const;
  const Tokenizer& tokenizer() const { return context_.generation.model->tokenizer; }

  ApiContext context_;
  ChatRequest request_;
  ChatPrompt prompt_;
  std::shared_ptr<HttpResponder> responder_;
  std::time_t created_;
  std::vector<ChatChoice> choices_;
  Usage usage_;
  RequestStats last_stats_;
  Json prompt_logprobs_;
  bool stream_begun_ = false;
};

void ChatClient::count_usage(const ChatChoice& choice, const OutputStep& step,
                             const RequestStats& stats) {
  usage_.prompt_tokens = stats.num_prompt_tokens;
  usage_.cached_tokens = std::max(usage_.cached_tokens, stats.num_cached_tokens);
  usage_.completion_tokens += std::ssize(step.token_ids);
  if (choice.output.in_reasoning()) usage_.reasoning_tokens += std::ssize(step.token_ids);
  last_stats_ = stats;
}

void ChatClient::on_step(std::size_t index, const OutputStep& step, const RequestStats& stats) {
  ChatChoice& choice = choices_[index];
  const std::vector<ChatPart> parts = choice.output.add(step);
  count_usage(choice, step, stats);
  if (!step.prompt_logprobs.empty())
    prompt_logprobs_ = prompt_logprobs_json(tokenizer(), prompt_.token_ids, step.prompt_logprobs);
  for (const ChatPart& part : parts) collect(choice, part);
  choice.token_ids.insert(choice.token_ids.end(), step.token_ids.begin(), step.token_ids.end());
  if (step.end_reason != EndReason::kNone) finish_choice(choice, step);
  if (streams()) return stream_step(index, step, parts);
  if (step.logprobs.empty()) return;
  const Json logprobs = step_logprobs(step);
  for (const Json& entry : logprobs.find("content")->as_array()) choice.logprobs.push_back(entry);
}

void ChatClient::finish_choice(ChatChoice& choice, const OutputStep& step) const {
  choice.finish_reason = name_of(step.end_reason);
  choice.stop_reason = step.stop_reason;
  const bool cut = step.end_reason == EndReason::kLength && choice.call_open;
  if (choice.output.num_calls() > 0 && !cut) choice.finish_reason = "tool_calls";
}

void ChatClient::collect(ChatChoice& choice, const ChatPart& part) const {
  switch (part.kind) {
    case ChatPart::Kind::kReasoning:
      choice.reasoning += part.text;
      return;
    case ChatPart::Kind::kContent:
      choice.content += part.text;
      return;
    case ChatPart::Kind::kCallBegin:
      choice.call_open = true;
      if (streams()) return;
      choice.tool_calls.push_back(
          Json::object({{"id", part.id},
                        {"type", "function"},
                        {"function", Json::object({{"name", part.name}, {"arguments", ""}})}}));
      return;
    case ChatPart::Kind::kArguments: {
      if (streams()) return;
      Json* function = choice.tool_calls.as_array()[part.call].find("function");
      *function->find("arguments") = function->find("arguments")->as_string() + part.text;
      return;
    }
    case ChatPart::Kind::kCallEnd:
      choice.call_open = false;
      return;
  }
}

void ChatClient::put_reasoning(Json& message, const std::string& text) const {
  if (!request_.include_reasoning) return;
  message["reasoning"] = text;
  if (context_.reasoning_content) message["reasoning_content"] = text;
}

void ChatClient::add_to_delta(Json& delta, const ChatPart& part) const {
  if (part.kind == ChatPart::Kind::kReasoning) return put_reasoning(delta, part.text);
  if (part.kind == ChatPart::Kind::kContent) {
    delta["content"] = part.text;
    return;
  }
  if (part.kind == ChatPart::Kind::kCallEnd) return;
  Json& calls = delta["tool_calls"];
  if (part.kind == ChatPart::Kind::kCallBegin)
    return calls.push_back(
        Json::object({{"index", static_cast<std::int64_t>(part.call)},
                      {"id", part.id},
                      {"type", "function"},
                      {"function", Json::object({{"name", part.name}, {"arguments", ""}})}}));
  const bool begins_here = calls.size() > 0 && *calls.as_array().back().find("index") ==
                                                   Json(static_cast<std::int64_t>(part.call));
  if (!begins_here)
    return calls.push_back(Json::object({{"index", static_cast<std::int64_t>(part.call)},
                                         {"function", Json::object({{"arguments", part.text}})}}));
  Json* arguments = calls.as_array().back().find("function")->find("arguments");
  *arguments = arguments->as_string() + part.text;
}

// Reasoning, content and calls of one step share a chunk as long as they come in that order.
void ChatClient::stream_step(std::size_t index, const OutputStep& step,
                             const std::vector<ChatPart>& parts) {
  Json delta = Json::object();
  ChatPart::Kind highest = ChatPart::Kind::kReasoning;
  const OutputStep* rest = &step;
  for (const ChatPart& part : parts) {
    const bool goes_back = part.kind < highest && part.kind < ChatPart::Kind::kCallBegin;
    if (goes_back && delta.size() > 0) {
      send_chunk(index, std::exchange(delta, Json::object()), std::exchange(rest, nullptr), false);
    }
    highest = part.kind;
    add_to_delta(delta, part);
  }
  const bool last = step.end_reason != EndReason::kNone;
  const bool has_more = rest != nullptr && !step.logprobs.empty();
  if (delta.size() > 0 || last || has_more || !choices_[index].begun)
    send_chunk(index, std::move(delta), rest, last);
}

Json ChatClient::step_logprobs(const OutputStep& step) const {
  return chat_logprobs(tokenizer(), step.token_ids, step.logprobs,
                       request_.common.return_tokens_as_token_ids);
}

Json ChatClient::answer(const char* object) const {
  return Json::object({{"id", "chatcmpl-" + request_.common.id},
                       {"object", object},
                       {"created", static_cast<std::int64_t>(created_)},
                       {"model", context_.generation.model->name()},
                       {"system_fingerprint", context_.fingerprint}});
}

// step: whose log-probabilities and ids the chunk carries; null when an earlier chunk did.
void ChatClient::send_chunk(std::size_t index, Json delta, const OutputStep* step, bool last) {
  ChatChoice& choice = choices_[index];
  if (!std::exchange(choice.begun, true)) {
    Json first = Json::object({{"role", "assistant"}, {"content", ""}});
    for (const auto& [key, value] : delta.as_object()) first[key] = value;
    delta = std::move(first);
  }
  Json entry = Json::object({{"index", static_cast<std::int64_t>(index)},
                             {"delta", std::move(delta)},
                             {"logprobs", Json()},
                             {"finish_reason", Json()}});
  if (step != nullptr && !step->logprobs.empty()) entry["logprobs"] = step_logprobs(*step);
  if (step != nullptr && request_.common.return_token_ids)
    entry["token_ids"] = token_ids_json(step->token_ids);
  if (last) {
    entry["finish_reason"] = choice.finish_reason;
    entry["stop_reason"] = choice.stop_reason;
  }
  Json chunk = answer("chat.completion.chunk");
  chunk["choices"] = Json::array({std::move(entry)});
  if (request_.common.continuous_usage) chunk["usage"] = usage_json(usage_);
  if (!std::exchange(stream_begun_, true)) begin_events(*responder_);
  send_event(*responder_, chunk);
}

Json ChatClient::message_of(const ChatChoice& choice) const {
  Json message = Json::object({{"role", "assistant"}, {"content", choice.content}});
  const bool has_calls = choice.tool_calls.size() > 0;
  if (choice.content.empty() && (has_calls || !choice.reasoning.empty())) message["content"] = {};
  message["refusal"] = Json();
  if (!choice.reasoning.empty()) put_reasoning(message, choice.reasoning);
  if (has_calls) message["tool_calls"] = choice.tool_calls;
  return message;
}

void ChatClient::on_end() {
  if (streams()) {
    if (request_.common.include_usage) {
      Json chunk = answer("chat.completion.chunk");
      chunk["choices"] = Json::array();
      chunk["usage"] = usage_json(usage_);
      if (context_.timings) chunk["timings"] = timings_json(last_stats_);
      send_event(*responder_, chunk);
    }
    return end_events(*responder_);
  }
  Json choices = Json::array();
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    ChatChoice& choice = choices_[i];
    Json entry = Json::object({{"index", static_cast<std::int64_t>(i)},
                               {"message", message_of(choice)},
                               {"logprobs", Json()},
                               {"finish_reason", choice.finish_reason},
                               {"stop_reason", choice.stop_reason}});
    if (request_.common.sampling.logprobs)
      entry["logprobs"] = Json::object({{"content", choice.logprobs}});
    if (request_.common.return_token_ids) entry["token_ids"] = token_ids_json(choice.token_ids);
    choices.push_back(std::move(entry));
  }
  Json body = answer("chat.completion");
  body["choices"] = std::move(choices);
  body["usage"] = usage_json(usage_);
  if (context_.timings) body["timings"] = timings_json(last_stats_);
  if (request_.common.sampling.prompt_logprobs) body["prompt_logprobs"] = prompt_logprobs_;
  if (request_.common.return_token_ids)
    body["prompt_token_ids"] = token_ids_json(prompt_.token_ids);
  send_json(*responder_, body);
}

void ChatClient::on_failure(const ApiError& error) {
  if (!stream_begun_) return send_error(*responder_, error);
  send_event(*responder_, error_json(error));
  end_events(*responder_);
}

// An answer of no tokens, for max_tokens 0.
void answer_nothing(ChatClient& client, std::int64_t num_prompt_tokens) {
  OutputStep step;
  step.end_reason = EndReason::kLength;
  const RequestStats stats{.num_prompt_tokens = num_prompt_tokens};
  for (std::int64_t i = 0; i < client.request().common.n; ++i)
    client.on_step(static_cast<std::size_t>(i), step, stats);
  client.on_end();
}

// The grammar waits for the end of a thought, which nothing else may end.
StructuredOutput structured_output(const ChatPrompt& prompt, const ServedModel& model) {
  StructuredOutput structured;
  if (!prompt.grammar || !prompt.output.in_reasoning) return structured;
  structured.start_token_id = model.tokenizer.added_token_id("</think>");
  for (const char* mark : {"<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<tool_call>"})
    if (const auto id = model.tokenizer.added_token_id(mark))
      structured.banned_before_start.push_back(*id);
  return structured;
}

}  // namespace

GenerationChoice make_choice(const CommonRequest& common,
                             const std::vector<std::int32_t>& prompt_token_ids,
                             std::int64_t index) {
  GenerationChoice choice{.request = {.prompt_token_ids = prompt_token_ids,
                                      .sampling = common.sampling,
                                      .ddtree_budget = common.ddtree_budget,
                                      .cache_salt = common.cache_salt},
                          .text = text_options(common)};
  settle_thinking(prompt_token_ids, choice.request.sampling);
  choice.request.sampling.choice_index = index;
  choice.request.sampling.stop.clear();
  return choice;
}

PreparedChat prepare_chat(const ApiContext& context, const Json& document) {
  const ServedModel& model = *context.generation.model;
  PreparedChat prepared{.request = parse_chat_request(body_fields(document), model), .prompt = {}};
  prepared.prompt = render_chat(prepared.request, model);
  settle_length(prepared.request.common, prepared.prompt.token_ids, std::nullopt, model,
                "messages");
  return prepared;
}

std::vector<GenerationChoice> chat_choices(const PreparedChat& prepared, const ServedModel& model) {
  const CommonRequest& common = prepared.request.common;
  std::vector<GenerationChoice> choices;
  for (std::int64_t i = 0; i < common.n; ++i) {
    GenerationChoice& choice =
        choices.emplace_back(make_choice(common, prepared.prompt.token_ids, i));
    choice.grammar = prepared.prompt.grammar;
    choice.request.sampling.structured = structured_output(prepared.prompt, model);
  }
  return choices;
}

void chat_completions(const ApiContext& context, const HttpRequest& request,
                      const std::shared_ptr<HttpResponder>& responder) {
  PreparedChat prepared = prepare_chat(context, parse_body(request.body));
  std::vector<GenerationChoice> choices = chat_choices(prepared, *context.generation.model);
  const auto length = std::ssize(prepared.prompt.token_ids);
  const bool nothing = prepared.request.common.sampling.max_tokens == 0;
  const auto client = std::make_shared<ChatClient>(context, std::move(prepared.request),
                                                   std::move(prepared.prompt), responder);
  if (nothing) return answer_nothing(*client, length);
  if (client->request().common.stream) expect_events(*responder);
  generate(context.generation, std::move(choices), client, *responder);
}

void render_chat_completions(const ApiContext& context, const HttpRequest& request,
                             HttpResponder& responder) {
  const auto [chat, prompt] = prepare_chat(context, parse_body(request.body));
  send_json(responder, Json::object({{"prompt", prompt.text},
                                     {"prompt_token_ids", token_ids_json(prompt.token_ids)},
                                     {"num_tokens", std::ssize(prompt.token_ids)},
                                     {"max_tokens", chat.common.sampling.max_tokens}}));
}

}  // namespace coppice
