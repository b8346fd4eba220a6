#include "server/chat_messages.h"

#include <algorithm>
#include <array>

#include "server/api_error.h"

namespace coppice {
namespace {

constexpr std::array<std::string_view, 6> kRoles = {"system",    "developer", "user",
                                                    "assistant", "tool",      "function"};
constexpr std::array<std::string_view, 4> kTextParts = {"text", "input_text", "output_text",
                                                        "refusal"};

template <std::size_t N>
bool is_one_of(std::string_view value, const std::array<std::string_view, N>& set) {
  return std::find(set.begin(), set.end(), value) != set.end();
}

Json normalized_part(const JsonField& part) {
  if (part.value().is_string())
    return Json::object({{"type", "text"}, {"text", part.as<std::string>()}});
  const auto type = part.get("type", "text");
  if (!is_one_of(type, kTextParts))
    throw ApiError(400,
                   part.path() + ": parts of type '" + type +
                       "' are not supported; this server takes text only",
                   part.path());
  const auto text = part.get<std::string>(type == "refusal" ? "refusal" : "text");
  return Json::object({{"type", "text"}, {"text", text}});
}

Json normalized_content(const JsonField& content) {
  if (content.value().is_string()) return content.value();
  if (!content.value().is_array()) content.fail("must be a string or an array of parts");
  Json parts = Json::array();
  for (const JsonField& part : content.elements()) parts.push_back(normalized_part(part));
  return parts;
}

Json normalized_call(const JsonField& call, const JsonField& function) {
  const auto name = function.get<std::string>("name");
  if (name.empty()) function.at("name").fail("is empty");
  Json arguments = Json("{}");
  if (const auto given = function.find("arguments")) {
    if (!given->value().is_string() && !given->value().is_object())
      given->fail("must be a string or an object");
    arguments = given->value();
  }
  return Json::object(
      {{"id", call.get("id", "")},
       {"type", "function"},
       {"function", Json::object({{"name", name}, {"arguments", std::move(arguments)}})}});
}

Json normalized_message(const JsonField& message) {
  auto role = message.get<std::string>("role");
  if (!is_one_of(role, kRoles))
    message.at("role").fail("'" + role + "' is not system, developer, user, assistant or tool");
  if (role == "function") role = "tool";
  Json out = Json::object({{"role", role}, {"content", ""}});
  if (const auto content = message.find("content")) out["content"] = normalized_content(*content);
  if (const auto name = message.find("name")) out["name"] = name->as<std::string>();
  if (const auto id = message.find("tool_call_id")) out["tool_call_id"] = id->as<std::string>();
  if (role != "assistant") return out;
  for (const char* key : {"reasoning_content", "reasoning"}) {
    const auto reasoning = message.find(key);
    if (!reasoning || !reasoning->value().is_string()) continue;
    out["reasoning_content"] = reasoning->as<std::string>();
    break;
  }
  if (const auto calls = message.find("tool_calls")) {
    Json list = Json::array();
    for (const JsonField& call : calls->elements())
      list.push_back(normalized_call(call, call.at("function")));
    if (list.size() > 0) out["tool_calls"] = std::move(list);
  } else if (const auto call = message.find("function_call")) {  // before there were tools
    out["tool_calls"] = Json::array({normalized_call(*call, *call)});
  }
  return out;
}

}  // namespace

Json normalized_messages(const JsonField& messages) {
  Json list = Json::array();
  for (const JsonField& message : messages.elements()) list.push_back(normalized_message(message));
  if (list.size() == 0) messages.fail("is empty: must hold at least one message");
  return list;
}

std::size_t count_tool_calls(const Json& messages) {
  std::size_t count = 0;
  for (const Json& message : messages.as_array())
    if (const Json* calls = message.find("tool_calls")) count += calls->size();
  return count;
}

Json normalized_tools(const JsonField& body) {
  Json list = Json::array();
  if (const auto tools = body.find("tools")) {
    for (const JsonField& tool : tools->elements()) {
      if (tool.get("type", "function") != "function")
        tool.at("type").fail("only tools of type function are supported");
      const JsonField function = tool.at("function");
      if (function.get<std::string>("name").empty()) function.at("name").fail("is empty");
      function.get<bool>("strict", false);  // of another type it would pass for false
      list.push_back(tool.value());
    }
  } else if (const auto functions = body.find("functions")) {
    for (const JsonField& function : functions->elements())
      list.push_back(Json::object({{"type", "function"}, {"function", function.value()}}));
  }
  return list.size() > 0 ? list : Json();
}

}  // namespace coppice
