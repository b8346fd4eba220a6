#include "server/chat_request.h"

#include <ctime>

#include "server/api_error.h"
#include "server/chat_messages.h"

namespace coppice {
namespace {

// Thinking on or off, in the spellings of vLLM and SGLang (chat_template_kwargs), Moonshot
// (thinking.type), Qwen (enable_thinking), OpenAI (reasoning_effort) and OpenRouter (reasoning).
std::optional<Json> asked_thinking(const JsonField& body) {
  if (const auto thinking = body.find("thinking")) {
    if (!thinking->value().is_object()) return thinking->value();
    const auto type = thinking->get<std::string>("type");
    if (type != "enabled" && type != "disabled" && type != "adaptive")
      thinking->at("type").fail("must be enabled or disabled");
    return Json(type != "disabled");
  }
  if (const auto thinking = body.find("enable_thinking")) return thinking->value();
  if (const auto reasoning = body.find("reasoning"); reasoning && reasoning->value().is_object()) {
    if (const auto enabled = reasoning->find("enabled")) return Json(enabled->as<bool>());
    if (reasoning->get("effort", "") == "none") return Json(false);
  }
  if (body.get("reasoning_effort", "") == "none") return Json(false);
  return std::nullopt;
}

Json template_kwargs(const JsonField& body, const ServedModel& model) {
  Json kwargs = model.template_kwargs;
  if (const auto thinking = asked_thinking(body)) kwargs["thinking"] = *thinking;
  if (const auto thinking = body.find("thinking");
      thinking && thinking->value().is_object() && thinking->get("keep", "") == "all")
    kwargs["preserve_thinking"] = true;
  if (const auto effort = body.find("reasoning_effort"))
    kwargs["reasoning_effort"] = effort->value();
  if (const auto documents = body.find("documents")) kwargs["documents"] = documents->value();
  if (const auto given = body.find("chat_template_kwargs"))
    for (const auto& [key, value] : given->members()) {
      if (key == "enable_thinking") kwargs.erase("thinking");
      if (key == "thinking") kwargs.erase("enable_thinking");
      kwargs[key] = value.value();
    }
  return kwargs;
}

void parse_tool_choice(const JsonField& body, ChatRequest& request) {
  const auto choice = body.find("tool_choice");
  if (!choice) return;
  if (choice->value().is_string()) {
    const auto word = choice->as<std::string>();
    if (word != "none" && word != "auto" && word != "required")
      choice->fail("must be none, auto, required or name a function");
    if (word == "none") request.tools = Json();
    request.force_tools = word == "required";
  } else {
    const auto function = choice->find("function");  // Responses name the function at the top
    request.forced_tool =
        function ? function->get<std::string>("name") : choice->get<std::string>("name");
    request.force_tools = true;
    bool declared = false;
    if (!request.tools.is_null())
      for (const Json& tool : request.tools.as_array())
        declared |= *tool.find("function")->find("name") == Json(request.forced_tool);
    if (!declared)
      choice->fail("names the function '" + request.forced_tool + "', which tools do not declare");
  }
  if (request.force_tools && request.tools.is_null())
    choice->fail("asks for a tool call, and tools declares none");
}

void parse_logprobs(const JsonField& body, CommonRequest& common) {
  const bool wanted = body.get<bool>("logprobs", false);
  const auto top = body.find("top_logprobs");
  const auto count = top ? top->as<std::int64_t>() : std::int64_t{0};
  if (count > 0 && !wanted) top->fail("needs logprobs: true");
  if (wanted) common.sampling.logprobs = count;
}

// Cuts a prompt behind the content of its last message, so that the model goes on with it.
MarkedText cut_behind_last_message(const MarkedText& prompt, const Json& messages) {
  const Json* content = messages.as_array().back().find("content");
  std::string text;
  if (content->is_string())
    text = content->as_string();
  else
    for (const Json& part : content->as_array()) text += part.find("text")->as_string();
  const std::size_t at = prompt.text().rfind(text);
  if (text.empty() || at == std::string::npos)
    throw ApiError(400, "continue_final_message: the last message's content is not in the prompt",
                   "continue_final_message");
  return prompt.substring(0, at + text.size());
}

// The answer's beginning up to where the model may choose again: what "required" and a named tool
// put into its mouth. A name still to be chosen begins with its dot: ".name" starts with one token.
std::string forced_beginning(const ChatRequest& request, const std::string& prompt,
                             std::size_t call_index) {
  if (!request.force_tools) return {};
  std::string forced;
  if (ReasoningParser::prompt_opens_reasoning(prompt)) forced = "</think>";
  forced += "<|tool_calls_section_begin|><|tool_call_begin|>functions";
  const bool one = request.tools.size() == 1;
  if (request.forced_tool.empty() && !one) return forced;
  const std::string name =
      one ? request.tools.as_array()[0].find("function")->find("name")->as_string()
          : request.forced_tool;
  return forced + "." + name + ":" + std::to_string(call_index) + "<|tool_call_argument_begin|>";
}

}  // namespace

ChatRequest parse_chat_request(const JsonField& body, const ServedModel& model) {
  check_model(body, model);
  ChatRequest request;
  request.common = parse_common(body, model);
  parse_logprobs(body, request.common);
  request.messages = normalized_messages(body.at("messages"));
  request.tools = normalized_tools(body);
  parse_tool_choice(body, request);
  if (request.force_tools && !model.parse_tools)
    throw ApiError(501, "tool_choice: this model's tool calls cannot be forced", "tool_choice");
  request.parse_tools = model.parse_tools && !request.tools.is_null();
  request.parse_reasoning = model.parse_reasoning && body.get<bool>("separate_reasoning", true);
  request.include_reasoning = body.get<bool>("include_reasoning", true);
  request.template_kwargs = template_kwargs(body, model);
  request.chat_template = body.get("chat_template", "");
  if (!request.chat_template.empty() && !model.trust_request_chat_template)
    throw ApiError(400, "chat_template: the server runs without --trust-request-chat-template",
                   "chat_template");
  const Json& last = request.messages.as_array().back();
  const auto last_message = body.at("messages").elements().back();
  const bool partial =
      *last.find("role") == Json("assistant") && last_message.get<bool>("partial", false);
  request.continue_final_message = body.get<bool>("continue_final_message", false) || partial;
  request.add_generation_prompt =
      body.get<bool>("add_generation_prompt", !request.continue_final_message);
  if (request.continue_final_message && request.add_generation_prompt)
    throw ApiError(400, "continue_final_message and add_generation_prompt exclude each other",
                   "continue_final_message");
  return request;
}

ChatPrompt render_chat(const ChatRequest& request, const ServedModel& model) {
  std::optional<ChatTemplate> own;
  if (!request.chat_template.empty()) own.emplace(request.chat_template, "chat_template");
  if (!own && !model.chat_template)
    throw ApiError(400, "the model has no chat template; start the server with --chat-template");
  ChatInput input{.messages = request.messages,
                  .tools = request.tools,
                  .kwargs = request.template_kwargs,
                  .add_generation_prompt = request.add_generation_prompt};
  const std::time_t now = std::time(nullptr);
  localtime_r(&now, &input.now);
  MarkedText text = (own ? *own : *model.chat_template).render(input);
  if (request.continue_final_message) text = cut_behind_last_message(text, request.messages);
  const std::size_t calls = count_tool_calls(request.messages);
  const std::string forced = forced_beginning(request, text.text(), calls);
  ChatPrompt prompt;
  prompt.output = {.parse_reasoning = request.parse_reasoning,
                   .in_reasoning = ReasoningParser::prompt_opens_reasoning(text.text()),
                   .parse_tools = request.parse_tools,
                   .first_call_index = calls,
                   .forced = forced};
  text.append(forced, /*trusted=*/true);
  prompt.text = text.text();
  prompt.token_ids = model.tokenizer.encode(text);
  return prompt;
}

}  // namespace coppice
