#include "server/responses_api.h"

#include <ctime>

#include "server/event_stream.h"
#include "server/responses_request.h"

namespace coppice {
namespace {

// One item of the output: a reasoning, a message or a function call.
struct Item {
  ChatPart::Kind kind;
  std::string id;
  std::string text;  // of a call: its arguments
  std::string call_id, name;

  bool is_call() const { return kind == ChatPart::Kind::kCallBegin; }
  bool is_reasoning() const { return kind == ChatPart::Kind::kReasoning; }

  Json part(const std::string& content) const {
    if (is_reasoning()) return Json::object({{"type", "reasoning_text"}, {"text", content}});
    return Json::object({{"type", "output_text"},
                         {"text", content},
                         {"annotations", Json::array()},
                         {"logprobs", Json::array()}});
  }
  Json json(bool done) const {
    const char* status = done ? "completed" : "in_progress";
    if (is_call())
      return Json::object({{"type", "function_call"},
                           {"id", id},
                           {"call_id", call_id},
                           {"name", name},
                           {"arguments", done ? text : ""},
                           {"status", status}});
    Json content = Json::array();
    if (done) content.push_back(part(text));
    if (is_reasoning())
      return Json::object({{"type", "reasoning"},
                           {"id", id},
                           {"summary", Json::array()},
                           {"content", std::move(content)},
                           {"status", status}});
    return Json::object({{"type", "message"},
                         {"id", id},
                         {"role", "assistant"},
                         {"content", std::move(content)},
                         {"status", status}});
  }
};

class ResponsesClient final : public GenerationClient {
 public:
  // `echoed`: the request's own settings, repeated in the answer.
  ResponsesClient(ApiContext context, const PreparedChat& prepared, Json echoed,
                  std::shared_ptr<HttpResponder> responder)
      : context_(std::move(context)),
        stream_(prepared.request.common.stream),
        id_(prepared.request.common.id),
        output_(prepared.prompt.output),
        echoed_(std::move(echoed)),
        responder_(std::move(responder)),
        created_(std::time(nullptr)) {}

  void on_step(std::size_t, const OutputStep& step, const RequestStats& stats) override {
    usage_.prompt_tokens = stats.num_prompt_tokens;
    usage_.cached_tokens = stats.num_cached_tokens;
    usage_.completion_tokens += std::ssize(step.token_ids);
    if (stream_ && !std::exchange(begun_, true)) {
      begin_events(*responder_);
      event("response.created", {{"response", response("in_progress")}});
      event("response.in_progress", {{"response", response("in_progress")}});
    }
    for (const ChatPart& part : output_.add(step)) take(part);
    if (output_.in_reasoning()) usage_.reasoning_tokens += std::ssize(step.token_ids);
    cut_ = step.end_reason == EndReason::kLength;
  }

  void on_end() override {
    end_item();
    const Json whole = response(cut_ ? "incomplete" : "completed");
    if (!stream_) return send_json(*responder_, whole);
    event(cut_ ? "response.incomplete" : "response.completed", {{"response", whole}});
    responder_->end();
  }

  void on_failure(const ApiError& error) override {
    if (!begun_) return send_error(*responder_, error);
    event("error",
          {{"code", std::to_string(error.status())}, {"message", error.what()}, {"param", Json()}});
    responder_->end();
  }

 private:
  void event(const char* type, Json::Object fields) {
    Json data = Json::object({{"type", type}, {"sequence_number", sequence_++}});
    for (Json::Member& field : fields) data[field.first] = std::move(field.second);
    send_event(*responder_, data, type);
  }
  Json index() const { return static_cast<std::int64_t>(items_.size()) - 1; }

  Json usage() const {
    return Json::object(
        {{"input_tokens", usage_.prompt_tokens},
         {"input_tokens_details",
          Json::object({{"cached_tokens", usage_.cached_tokens}, {"cache_write_tokens", 0}})},
         {"output_tokens", usage_.completion_tokens},
         {"output_tokens_details", Json::object({{"reasoning_tokens", usage_.reasoning_tokens}})},
         {"total_tokens", usage_.prompt_tokens + usage_.completion_tokens}});
  }

  Json response(const char* status) const {
    Json output = Json::array();
    for (const Item& item : items_) output.push_back(item.json(true));
    const bool done = std::string_view(status) != "in_progress";
    Json body = Json::object({{"id", "resp_" + id_},
                              {"object", "response"},
                              {"created_at", static_cast<std::int64_t>(created_)},
                              {"status", status},
                              {"model", context_.generation.model->name()},
                              {"output", done ? std::move(output) : Json::array()},
                              {"error", Json()},
                              {"incomplete_details", Json()},
                              {"usage", done ? usage() : Json()}});
    if (done && cut_) body["incomplete_details"] = Json::object({{"reason", "max_output_tokens"}});
    for (const auto& [key, value] : echoed_.as_object()) body[key] = value;
    return body;
  }

  void begin_item(const ChatPart& part) {
    end_item();
    const char* prefix = part.kind == ChatPart::Kind::kReasoning ? "rs_"
                         : part.kind == ChatPart::Kind::kContent ? "msg_"
                                                                 : "fc_";
    items_.push_back({.kind = part.kind,
                      .id = prefix + id_ + "_" + std::to_string(items_.size()),
                      .text = {},
                      .call_id = part.id,
                      .name = part.name});
    open_ = true;
    if (!stream_) return;
    event("response.output_item.added",
          {{"output_index", index()}, {"item", items_.back().json(false)}});
    if (!items_.back().is_call()) part_event("response.content_part.added", "");
  }
  void part_event(const char* type, const std::string& text) {
    event(type, {{"item_id", items_.back().id},
                 {"output_index", index()},
                 {"content_index", 0},
                 {"part", items_.back().part(text)}});
  }
  // A delta, or with `done` the whole text behind the last one.
  void text_event(bool done, const std::string& text) {
    const Item& item = items_.back();
    const char* stem = item.is_call()        ? "response.function_call_arguments."
                       : item.is_reasoning() ? "response.reasoning_text."
                                             : "response.output_text.";
    Json::Object fields = {{"item_id", item.id}, {"output_index", index()}};
    if (!item.is_call()) fields.emplace_back("content_index", 0);
    if (item.is_call() && done) fields.emplace_back("name", item.name);
    fields.emplace_back(!done ? "delta" : item.is_call() ? "arguments" : "text", text);
    if (item.kind == ChatPart::Kind::kContent) fields.emplace_back("logprobs", Json::array());
    event((std::string(stem) + (done ? "done" : "delta")).c_str(), std::move(fields));
  }
  void end_item() {
    if (!std::exchange(open_, false) || !stream_) return;
    const Item& item = items_.back();
    text_event(true, item.text);
    if (!item.is_call()) part_event("response.content_part.done", item.text);
    event("response.output_item.done", {{"output_index", index()}, {"item", item.json(true)}});
  }
  void take(const ChatPart& part) {
    if (part.kind == ChatPart::Kind::kCallEnd) return;
    const bool continues = part.kind == ChatPart::Kind::kArguments ||
                           (!items_.empty() && items_.back().kind == part.kind);
    if (part.kind == ChatPart::Kind::kCallBegin || !continues) begin_item(part);
    if (part.kind == ChatPart::Kind::kCallBegin) return;
    items_.back().text += part.text;
    if (stream_) text_event(false, part.text);
  }

  ApiContext context_;
  bool stream_;
  std::string id_;
  ChatOutput output_;
  Json echoed_;
  std::shared_ptr<HttpResponder> responder_;
  std::time_t created_;
  std::vector<Item> items_;
  bool begun_ = false, open_ = false, cut_ = false;
  std::int64_t sequence_ = 0;
  Usage usage_;
};

// The settings that clients expect back.
Json echoed_settings(const Json& body) {
  Json echoed =
      Json::object({{"instructions", Json()},
                    {"max_output_tokens", Json()},
                    {"metadata", Json::object()},
                    {"parallel_tool_calls", true},
                    {"previous_response_id", Json()},
                    {"reasoning", Json()},
                    {"store", false},
                    {"temperature", Json()},
                    {"text", Json::object({{"format", Json::object({{"type", "text"}})}})},
                    {"tool_choice", "auto"},
                    {"tools", Json::array()},
                    {"top_p", Json()},
                    {"truncation", "disabled"}});
  const Json defaults = echoed;
  for (const auto& [key, value] : defaults.as_object())
    if (const Json* given = body.find(key); given != nullptr && !given->is_null() && key != "store")
      echoed[key] = *given;
  return echoed;
}

}  // namespace

void responses(const ApiContext& context, const HttpRequest& request,
               const std::shared_ptr<HttpResponder>& responder) {
  const Json document = parse_body(request.body);
  const Json chat = chat_body_of_response(body_fields(document));
  const PreparedChat prepared = prepare_chat(context, chat);
  if (prepared.request.common.sampling.max_tokens == 0)
    throw ApiError(400, "max_output_tokens is 0: must be at least 1", "max_output_tokens");
  const auto client =
      std::make_shared<ResponsesClient>(context, prepared, echoed_settings(document), responder);
  if (prepared.request.common.stream) expect_events(*responder);
  generate(context.generation, chat_choices(prepared, *context.generation.model), client,
           *responder);
}

}  // namespace coppice
