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
    if (!thinking->value().is_object()) return Json(thinking->as<bool>());
    const auto type = thinking->get<std::string>("type");
    if (type != "enabled" && type != "disabled" && type != "adaptive")
      thinking->at("type").fail("must be enabled or disabled");
    return Json(type != "disabled");
  }
  if (const auto thinking = body.find("enable_thinking")) return Json(thinking->as<bool>());
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

bool is_declared(const Json& tools, const std::string& name) {
  if (tools.is_null()) return false;
  for (const Json& tool : tools.as_array())
    if (*tool.find("function")->find("name") == Json(name)) return true;
  return false;
}

// {"function": {"name"}} of Chat, or Responses' name at the top.
std::string named_function(const JsonField& choice, const ChatRequest& request) {
  const auto function = choice.find("function");
  auto name = function ? function->get<std::string>("name") : choice.get<std::string>("name");
  if (!is_declared(request.tools, name))
    choice.fail("names the function '" + name + "', which tools do not declare");
  return name;
}

void parse_tool_choice(const JsonField& body, ChatRequest& request) {
  using Mode = ToolRules::Mode;
  ToolRules& rules = request.tool_rules;
  rules.parallel = body.get<bool>("parallel_tool_calls", true);
  if (!request.tools.is_null())
    for (const Json& tool : request.tools.as_array()) {
      const Json* strict = tool.find("function")->find("strict");
      if (strict != nullptr && *strict == Json(true)) rules.mode = Mode::kEnforced;
    }
  auto choice = body.find("tool_choice");
  if (!choice) choice = body.find("function_call");  // beside `functions`, before there were tools
  if (!choice) return;
  std::string word;
  if (choice->value().is_string()) {
    word = choice->as<std::string>();
  } else if (choice->get("type", "function") == "allowed_tools") {
    const auto nested = choice->find("allowed_tools");
    const JsonField allowed = nested ? *nested : *choice;
    word = allowed.get("mode", "auto");
    for (const JsonField& tool : allowed.at("tools").elements())
      rules.names.push_back(named_function(tool, request));
    if (rules.names.empty()) allowed.at("tools").fail("is empty: must hold at least one tool");
    rules.mode = Mode::kEnforced;
  } else {
    rules.names = {named_function(*choice, request)};
    rules.parallel = false;
    word = "required";
  }
  if (word != "none" && word != "auto" && word != "required")
    choice->fail("must be none, auto, required, allowed_tools or name a function");
  if (word == "none") {
    request.tools = Json();
    rules.mode = Mode::kFree;
  }
  if (word == "required") rules.mode = Mode::kRequired;
  if (rules.mode == Mode::kRequired && request.tools.is_null())
    choice->fail("asks for a tool call, and tools declares none");
}

void parse_logprobs(const JsonField& body, CommonRequest& common) {
  const bool wanted = body.get<bool>("logprobs", false);
  const auto top = body.find("top_logprobs");
  const auto count = top ? top->as<std::int64_t>() : std::int64_t{0};
  if (count > 0 && !wanted) top->fail("needs logprobs: true");
  if (wanted) common.sampling.logprobs = count;
}

// Where `text` comes last in what the request brought; npos: nowhere. The template's own text,
// <|im_end|> say, may hold the same letters.
std::size_t rfind_in_request_text(const MarkedText& prompt, const std::string& text) {
  const auto is_template = [&](std::size_t at) {
    for (const MarkedText::Range& range : prompt.trusted())
      if (range.begin < at + text.size() && at < range.end) return true;
    return false;
  };
  std::size_t at = prompt.text().rfind(text);
  while (at != std::string::npos && is_template(at))
    at = at == 0 ? std::string::npos : prompt.text().rfind(text, at - 1);
  return at;
}

// Cuts a prompt behind the content of its last message, so that the model goes on with it.
MarkedText cut_behind_last_message(const MarkedText& prompt, const Json& messages) {
  const auto fail = [](const char* cause) {
    throw ApiError(400, std::string("continue_final_message: the last message") + cause,
                   "continue_final_message");
  };
  const Json& last = messages.as_array().back();
  if (last.find("tool_calls") != nullptr) fail(" ends in tool calls, which cannot be continued");
  const Json* content = last.find("content");
  std::string text;
  if (content->is_string())
    text = content->as_string();
  else
    for (const Json& part : content->as_array()) text += part.find("text")->as_string();
  const std::size_t at = rfind_in_request_text(prompt, text);
  if (text.empty() || at == std::string::npos) fail("'s content is not in the prompt");
  return prompt.substring(0, at + text.size());
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
  if (request.tool_rules.mode == ToolRules::Mode::kRequired &&
      model.tools.format == ToolFormat::kNone)
    throw ApiError(501, "tool_choice: this model's tool calls cannot be forced", "tool_choice");
  request.parse_tools = model.tools.format != ToolFormat::kNone && !request.tools.is_null();
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
  request.add_special_tokens = body.get<bool>("add_special_tokens", false);
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
  ChatPrompt prompt;
  prompt.output = {.parse_reasoning = request.parse_reasoning,
                   .in_reasoning = ReasoningParser::prompt_opens_reasoning(text.text()),
                   .tools = request.parse_tools ? model.tools : ToolSyntax{},
                   .first_call_index = calls};
  prompt.grammar = request.parse_tools ? tool_grammar(request.tool_rules, request.tools,
                                                      request.common.grammar, calls, model)
                                       : request.common.grammar;
  prompt.text = text.text();
  prompt.token_ids = model.tokenizer.encode(text);
  if (request.add_special_tokens) {
    const std::span<const std::int32_t> prefix = model.tokenizer.prompt_prefix();
    prompt.token_ids.insert(prompt.token_ids.begin(), prefix.begin(), prefix.end());
  }
  return prompt;
}

}  // namespace coppice
