#include "server/messages_api.h"

#include "server/event_stream.h"
#include "server/messages_request.h"

namespace coppice {
namespace {

std::string anthropic_error_type(int status) {
  if (status == 401) return "authentication_error";
  if (status == 404) return "not_found_error";
  if (status == 413) return "request_too_large";
  if (status == 429) return "rate_limit_error";
  if (status == 503) return "overloaded_error";
  return status >= 500 ? "api_error" : "invalid_request_error";
}

Json anthropic_error(const ApiError& error) {
  return Json::object({{"type", "error"},
                       {"error", Json::object({{"type", anthropic_error_type(error.status())},
                                               {"message", error.what()}})}});
}

void refuse(HttpResponder& responder, const ApiError& error) {
  responder.send(error.status(), "application/json", write_json(anthropic_error(error)),
                 retry_headers(error));
}

// One content block of the answer: thinking, text or tool_use.
struct Block {
  ChatPart::Kind kind;
  std::string text, id, name;

  Json begin() const {
    if (kind == ChatPart::Kind::kReasoning)
      return Json::object({{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
    if (kind == ChatPart::Kind::kContent) return Json::object({{"type", "text"}, {"text", ""}});
    return Json::object(
        {{"type", "tool_use"}, {"id", id}, {"name", name}, {"input", Json::object()}});
  }
  static Json delta(ChatPart::Kind kind, const std::string& text) {
    if (kind == ChatPart::Kind::kReasoning)
      return Json::object({{"type", "thinking_delta"}, {"thinking", text}});
    if (kind == ChatPart::Kind::kContent)
      return Json::object({{"type", "text_delta"}, {"text", text}});
    return Json::object({{"type", "input_json_delta"}, {"partial_json", text}});
  }
  Json whole() const {
    Json block = begin();
    if (kind == ChatPart::Kind::kReasoning) block["thinking"] = text;
    if (kind == ChatPart::Kind::kContent) block["text"] = text;
    if (kind != ChatPart::Kind::kCallBegin) return block;
    try {
      block["input"] = parse_json(text, "tool input");
    } catch (const Error&) {
      block["input"] = Json::object({{"raw", text}});  // cut by max_tokens
    }
    return block;
  }
};

class MessagesClient final : public GenerationClient {
 public:
  MessagesClient(ApiContext context, const ChatRequest& request, const ChatPrompt& prompt,
                 std::shared_ptr<HttpResponder> responder)
      : context_(std::move(context)),
        stream_(request.common.stream),
        id_("msg_" + request.common.id),
        output_(prompt.output),
        responder_(std::move(responder)) {}

  void on_step(std::size_t, const OutputStep& step, const RequestStats& stats) override {
    usage_.prompt_tokens = stats.num_prompt_tokens;
    usage_.cached_tokens = stats.num_cached_tokens;
    usage_.completion_tokens += std::ssize(step.token_ids);
    if (stream_ && !std::exchange(begun_, true)) begin_stream();
    for (const ChatPart& part : output_.add(step)) take(part);
    if (step.end_reason == EndReason::kNone) return;
    stop_sequence_ = step.stop_reason.is_string() ? step.stop_reason : Json();
    stop_reason_ = output_.num_calls() > 0                 ? "tool_use"
                   : step.end_reason == EndReason::kLength ? "max_tokens"
                   : stop_sequence_.is_null()              ? "end_turn"
                                                           : "stop_sequence";
  }

  void on_end() override {
    if (!stream_) {
      Json content = Json::array();
      for (const Block& block : blocks_) content.push_back(block.whole());
      Json message = head();
      message["content"] = std::move(content);
      message["stop_reason"] = stop_reason_;
      message["stop_sequence"] = stop_sequence_;
      message["usage"] = usage();
      return send_json(*responder_, message);
    }
    end_block();
    event(Json::object({{"type", "message_delta"},
                        {"delta", Json::object({{"stop_reason", stop_reason_},
                                                {"stop_sequence", stop_sequence_}})},
                        {"usage", usage()}}));
    event(Json::object({{"type", "message_stop"}}));
    responder_->end();
  }

  void on_failure(const ApiError& error) override {
    if (!begun_) return refuse(*responder_, error);
    event(anthropic_error(error));
    responder_->end();
  }

 private:
  void event(const Json& data) { send_event(*responder_, data, data.find("type")->as_string()); }
  Json head() const {
    return Json::object({{"id", id_},
                         {"type", "message"},
                         {"role", "assistant"},
                         {"model", context_.generation.model->name()},
                         {"content", Json::array()},
                         {"stop_reason", Json()},
                         {"stop_sequence", Json()}});
  }
  Json usage() const {
    return Json::object({{"input_tokens", usage_.prompt_tokens - usage_.cached_tokens},
                         {"output_tokens", usage_.completion_tokens},
                         {"cache_read_input_tokens", usage_.cached_tokens},
                         {"cache_creation_input_tokens", 0}});
  }
  void begin_stream() {
    begin_events(*responder_);
    Json message = head();
    message["usage"] = usage();
    event(Json::object({{"type", "message_start"}, {"message", std::move(message)}}));
  }
  Json index() const { return static_cast<std::int64_t>(blocks_.size()) - 1; }
  void end_block() {
    if (std::exchange(open_, false))
      event(Json::object({{"type", "content_block_stop"}, {"index", index()}}));
  }
  void begin_block(const ChatPart& part) {
    if (stream_) end_block();
    blocks_.push_back({.kind = part.kind, .text = {}, .id = part.id, .name = part.name});
    open_ = true;
    if (stream_)
      event(Json::object({{"type", "content_block_start"},
                          {"index", index()},
                          {"content_block", blocks_.back().begin()}}));
  }
  void take(const ChatPart& part) {
    if (part.kind == ChatPart::Kind::kCallEnd) return;
    const bool continues = part.kind == ChatPart::Kind::kArguments ||
                           (!blocks_.empty() && blocks_.back().kind == part.kind);
    if (part.kind == ChatPart::Kind::kCallBegin || !continues) begin_block(part);
    if (part.kind == ChatPart::Kind::kCallBegin) return;
    blocks_.back().text += part.text;
    if (stream_)
      event(Json::object({{"type", "content_block_delta"},
                          {"index", index()},
                          {"delta", Block::delta(part.kind, part.text)}}));
  }

  ApiContext context_;
  bool stream_;
  std::string id_;
  ChatOutput output_;
  std::shared_ptr<HttpResponder> responder_;
  std::vector<Block> blocks_;
  bool begun_ = false, open_ = false;
  Usage usage_;
  std::string stop_reason_;
  Json stop_sequence_;
};

}  // namespace

void messages(const ApiContext& context, const HttpRequest& request,
              const std::shared_ptr<HttpResponder>& responder) {
  try {
    const Json document = parse_body(request.body);
    const Json chat = chat_body_of_messages(body_fields(document), true);
    PreparedChat prepared = prepare_chat(context, chat);
    if (prepared.request.common.sampling.max_tokens == 0)
      throw ApiError(400, "max_tokens is 0: must be at least 1", "max_tokens");
    const auto client =
        std::make_shared<MessagesClient>(context, prepared.request, prepared.prompt, responder);
    if (prepared.request.common.stream) expect_events(*responder);
    generate(context.generation, chat_choices(prepared, *context.generation.model), client,
             *responder);
  } catch (const std::exception& error) {
    refuse(*responder, to_api_error(error));
  }
}

void count_message_tokens(const ApiContext& context, const HttpRequest& request,
                          HttpResponder& responder) {
  try {
    const Json document = parse_body(request.body);
    const Json chat = chat_body_of_messages(body_fields(document), false);
    send_json(
        responder,
        Json::object({{"input_tokens", std::ssize(prepare_chat(context, chat).prompt.token_ids)}}));
  } catch (const std::exception& error) {
    refuse(responder, to_api_error(error));
  }
}

}  // namespace coppice
