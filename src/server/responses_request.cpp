#include "server/responses_request.h"

#include "server/api_error.h"

namespace coppice {
namespace {

// Function calls, reasoning and text of one turn are items of their own; here they join.
class TurnBuilder {
 public:
  void add(const JsonField& item) {
    if (item.value().is_string()) return add_message("user", item.value());
    const auto type = item.get("type", "message");
    if (type == "message") {
      add_message(item.get<std::string>("role"), item.at("content").value());
    } else if (type == "function_call") {
      add_call(item);
    } else if (type == "function_call_output") {
      const Json& output = item.at("output").value();
      messages_.push_back(Json::object({{"role", "tool"},
                                        {"tool_call_id", item.get<std::string>("call_id")},
                                        {"content", output}}));
    } else if (type == "reasoning") {
      add_reasoning(item);
    } else {
      throw ApiError(400, item.path() + ": items of type '" + type + "' are not supported",
                     item.path());
    }
  }
  void add_message(const std::string& role, const Json& content) {
    if (role == "assistant" && is_open_turn()) {
      messages_.as_array().back()["content"] = content;
      return;
    }
    messages_.push_back(Json::object({{"role", role}, {"content", content}}));
  }
  Json take() { return std::move(messages_); }

 private:
  // An assistant message that has neither text nor calls yet.
  bool is_open_turn() const {
    if (messages_.size() == 0) return false;
    const Json& last = messages_.as_array().back();
    return *last.find("role") == Json("assistant") && last.find("content") == nullptr &&
           last.find("tool_calls") == nullptr;
  }
  bool is_assistant_turn() const {
    return messages_.size() > 0 && *messages_.as_array().back().find("role") == Json("assistant");
  }
  void add_call(const JsonField& item) {
    if (!is_assistant_turn()) messages_.push_back(Json::object({{"role", "assistant"}}));
    messages_.as_array().back()["tool_calls"].push_back(
        Json::object({{"id", item.get<std::string>("call_id")},
                      {"type", "function"},
                      {"function", Json::object({{"name", item.get<std::string>("name")},
                                                 {"arguments", item.get("arguments", "{}")}})}}));
  }
  void add_reasoning(const JsonField& item) {
    std::string text;
    if (const auto content = item.find("content"))
      for (const JsonField& part : content->elements()) text += part.get("text", "");
    messages_.push_back(Json::object({{"role", "assistant"}, {"reasoning_content", text}}));
  }

  Json messages_ = Json::array();
};

Json chat_tools(const JsonField& tools) {
  Json list = Json::array();
  for (const JsonField& tool : tools.elements()) {
    const auto type = tool.get<std::string>("type");
    if (type != "function")
      throw ApiError(400, tool.path() + ": tools of type '" + type + "' are not supported",
                     tool.path());
    Json function = Json::object();
    for (const char* key : {"name", "description", "parameters", "strict"})
      if (const auto field = tool.find(key)) function[key] = field->value();
    list.push_back(Json::object({{"type", "function"}, {"function", std::move(function)}}));
  }
  return list;
}

// "auto": a prompt that is too long loses its beginning, as in vLLM.
void add_truncation(const JsonField& body, Json& chat) {
  const auto truncation = body.get("truncation", "disabled");
  if (truncation == "auto") chat["truncate_prompt_tokens"] = -1;
  if (truncation != "auto" && truncation != "disabled")
    body.at("truncation").fail("must be auto or disabled");
}

// What a response may include beyond its text is of tools that are not here, but for this.
void refuse_logprobs(const JsonField& body) {
  constexpr const char* kLogprobs = "message.output_text.logprobs";
  if (body.get<std::int64_t>("top_logprobs", 0) > 0)
    body.at("top_logprobs").fail("responses have no log-probabilities here; chat completions do");
  for (const std::string& name : body.get("include", std::vector<std::string>()))
    if (name == kLogprobs)
      body.at("include").fail(std::string(kLogprobs) + " is not here; chat completions have them");
}

}  // namespace

Json chat_body_of_response(const JsonField& body) {
  for (const char* key : {"previous_response_id", "conversation", "prompt"})
    if (body.has(key))
      throw ApiError(400, std::string(key) + ": this server stores no responses; send all input",
                     key);
  refuse_logprobs(body);
  if (body.get<bool>("background", false))
    throw ApiError(501, "background: responses are not run in the background", "background");
  TurnBuilder turns;
  if (const auto instructions = body.find("instructions"))
    turns.add_message("system", instructions->value());
  const auto input = body.find("input");
  if (!input)
    turns.add_message("user", "");  // OpenAI's SDK may leave it out
  else if (input->value().is_string())
    turns.add_message("user", input->value());
  else
    for (const JsonField& item : input->elements()) turns.add(item);
  Json chat = Json::object({{"messages", turns.take()}});
  for (const char* key : {"model", "temperature", "top_p", "top_k", "stream", "seed", "stop",
                          "tool_choice", "parallel_tool_calls", "structured_outputs",
                          "chat_template_kwargs", "ddtree_budget", "cache_salt"})
    if (const auto field = body.find(key)) chat[key] = field->value();
  if (const auto limit = body.find("max_output_tokens")) chat["max_tokens"] = limit->value();
  if (const auto tools = body.find("tools"))
    if (Json list = chat_tools(*tools); list.size() > 0) chat["tools"] = std::move(list);
  add_truncation(body, chat);
  if (const auto reasoning = body.find("reasoning"))
    if (const auto effort = reasoning->find("effort")) chat["reasoning_effort"] = effort->value();
  if (const auto text = body.find("text"))
    if (const auto format = text->find("format")) chat["response_format"] = format->value();
  return chat;
}

}  // namespace coppice
