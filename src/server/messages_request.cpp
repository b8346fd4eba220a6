#include "server/messages_request.h"

#include "server/api_error.h"

namespace coppice {
namespace {

// A string, or the texts of a list of text blocks.
std::string text_of(const JsonField& content) {
  if (content.value().is_string()) return content.as<std::string>();
  std::string text;
  for (const JsonField& block : content.elements()) {
    const auto type = block.get("type", "text");
    if (type != "text")
      throw ApiError(400, block.path() + ": blocks of type '" + type + "' are not supported here",
                     block.path());
    text += block.get<std::string>("text");
  }
  return text;
}

// An assistant turn: text, thinking and tool_use blocks become one message.
Json assistant_message(const JsonField& content) {
  std::string text, reasoning;
  Json calls = Json::array();
  for (const JsonField& block : content.elements()) {
    const auto type = block.get<std::string>("type");
    if (type == "text") {
      text += block.get<std::string>("text");
    } else if (type == "thinking") {
      reasoning += block.get<std::string>("thinking");
    } else if (type == "tool_use") {
      const auto input = block.find("input");
      calls.push_back(Json::object(
          {{"id", block.get<std::string>("id")},
           {"type", "function"},
           {"function",
            Json::object({{"name", block.get<std::string>("name")},
                          {"arguments", input ? write_json(input->value()) : "{}"}})}}));
    } else if (type != "redacted_thinking") {
      throw ApiError(400, block.path() + ": blocks of type '" + type + "' are not supported",
                     block.path());
    }
  }
  Json message = Json::object({{"role", "assistant"}, {"content", text}});
  if (!reasoning.empty()) message["reasoning_content"] = reasoning;
  if (calls.size() > 0) message["tool_calls"] = std::move(calls);
  return message;
}

// A user turn: each tool_result becomes a tool message in its place, text in between user messages.
void add_user_messages(const JsonField& content, Json& messages) {
  std::string text;
  bool has_text = false;
  const auto flush = [&] {
    if (has_text) messages.push_back(Json::object({{"role", "user"}, {"content", text}}));
    text.clear();
    has_text = false;
  };
  for (const JsonField& block : content.elements()) {
    const auto type = block.get<std::string>("type");
    if (type == "text") {
      text += block.get<std::string>("text");
      has_text = true;
    } else if (type == "tool_result") {
      flush();
      const auto result = block.find("content");
      messages.push_back(Json::object({{"role", "tool"},
                                       {"tool_call_id", block.get<std::string>("tool_use_id")},
                                       {"content", result ? text_of(*result) : ""}}));
    } else {
      throw ApiError(400,
                     block.path() + ": blocks of type '" + type +
                         "' are not supported; this server takes text only",
                     block.path());
    }
  }
  flush();
}

Json chat_messages(const JsonField& body) {
  Json messages = Json::array();
  if (const auto system = body.find("system"))
    messages.push_back(Json::object({{"role", "system"}, {"content", text_of(*system)}}));
  const JsonField list = body.at("messages");
  const auto given = list.elements();
  if (given.empty()) list.fail("is empty: must hold at least one message");
  for (const JsonField& message : given) {
    const auto role = message.get<std::string>("role");
    const JsonField content = message.at("content");
    if (role != "user" && role != "assistant" && role != "system")
      message.at("role").fail("must be user or assistant");
    if (content.value().is_string())
      messages.push_back(Json::object({{"role", role}, {"content", content.value()}}));
    else if (role == "assistant")
      messages.push_back(assistant_message(content));
    else if (content.elements().empty())
      content.fail("is empty: must hold at least one block");
    else if (role == "system")
      messages.push_back(Json::object({{"role", role}, {"content", text_of(content)}}));
    else
      add_user_messages(content, messages);
  }
  return messages;
}

Json chat_tools(const JsonField& body) {
  Json list = Json::array();
  const auto tools = body.find("tools");
  if (!tools) return list;
  for (const JsonField& tool : tools->elements()) {
    Json function = Json::object({{"name", tool.get<std::string>("name")}});
    if (const auto text = tool.find("description")) function["description"] = text->value();
    if (const auto strict = tool.find("strict")) function["strict"] = strict->value();
    function["parameters"] = tool.at("input_schema").value();
    list.push_back(Json::object({{"type", "function"}, {"function", std::move(function)}}));
  }
  return list;
}

Json chat_tool_choice(const JsonField& choice) {
  const auto type = choice.get<std::string>("type");
  if (type == "any") return "required";
  if (type == "auto" || type == "none") return type;
  if (type != "tool") choice.at("type").fail("must be auto, any, tool or none");
  return Json::object({{"type", "function"},
                       {"function", Json::object({{"name", choice.get<std::string>("name")}})}});
}

// An answer that the client has begun: the model goes on with it.
bool is_begun_answer(const Json& message) {
  const Json* content = message.find("content");
  return *message.find("role") == Json("assistant") && message.find("tool_calls") == nullptr &&
         content != nullptr && content->is_string() && !content->as_string().empty();
}

}  // namespace

Json chat_body_of_messages(const JsonField& body, bool needs_max_tokens) {
  Json chat = Json::object({{"messages", chat_messages(body)}});
  if (is_begun_answer(chat.find("messages")->as_array().back()))
    chat["continue_final_message"] = true;
  for (const char* key : {"model", "temperature", "top_p", "top_k", "stream",
                          "chat_template_kwargs", "ddtree_budget", "seed"})
    if (const auto field = body.find(key)) chat[key] = field->value();
  if (needs_max_tokens) chat["max_tokens"] = body.get<std::int64_t>("max_tokens");
  if (const auto stop = body.find("stop_sequences")) chat["stop"] = stop->value();
  const Json tools = chat_tools(body);
  if (tools.size() > 0) chat["tools"] = tools;
  if (const auto choice = body.find("tool_choice")) {
    chat["tool_choice"] = chat_tool_choice(*choice);
    if (choice->get<bool>("disable_parallel_tool_use", false)) chat["parallel_tool_calls"] = false;
  }
  if (const auto format = body.find("output_format")) chat["response_format"] = format->value();
  if (const auto config = body.find("output_config"))
    if (const auto format = config->find("format")) chat["response_format"] = format->value();
  if (const auto thinking = body.find("thinking")) chat["thinking"] = thinking->value();
  return chat;
}

}  // namespace coppice
