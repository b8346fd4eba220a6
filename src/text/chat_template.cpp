#include "text/chat_template.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "io/json_field.h"
#include "io/mapped_file.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_parser.h"
#include "text/tools_typescript.h"
#include "text/unicode.h"

namespace coppice {
namespace {

[[noreturn]] void bad_request(const std::string& cause) {
  throw Error(ErrorKind::kInvalidArgument, cause);
}

bool is_false_word(std::string word) {
  word = jinja_lower(word);
  return word == "false" || word == "0" || word == "off" || word == "no" || word.empty();
}

// A switch as clients send it: true, "false", 0 ...
bool as_switch(const Json& value) {
  if (value.is_bool()) return value.as_bool();
  if (value.is_string()) return !is_false_word(value.as_string());
  return !value.is_number() || value.as_double() != 0;
}

bool is_switch(std::string_view name) {
  return name == "thinking" || name == "enable_thinking" || name == "preserve_thinking";
}

// The request's template variables with the switches read and the two names of one made equal.
Json::Object normalized_kwargs(const Json& kwargs) {
  Json::Object out;
  if (kwargs.is_null()) return out;
  if (!kwargs.is_object()) bad_request("chat_template_kwargs: must be an object");
  for (const auto& [name, value] : kwargs.as_object()) {
    if (name == "messages" || name == "tools" || name == "add_generation_prompt") {
      bad_request("chat_template_kwargs: '" + name + "' is set by the request itself");
    }
    if (!is_switch(name)) {
      out.emplace_back(name, value);
    } else if (!value.is_null()) {
      out.emplace_back(name, Json(as_switch(value)));
    }
  }
  const Json given(out);
  const Json* thinking = given.find("thinking");
  const Json* enable_thinking = given.find("enable_thinking");
  if (thinking != nullptr && enable_thinking == nullptr)
    out.emplace_back("enable_thinking", *thinking);
  if (enable_thinking != nullptr && thinking == nullptr)
    out.emplace_back("thinking", *enable_thinking);
  return out;
}

bool contains_any(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view word) { return text.find(word) != text.npos; });
}

// Whether the template asks, near where it names the arguments, if they are a string.
bool tells_text_arguments(std::string_view text) {
  constexpr std::size_t kNear = 120;
  for (std::size_t i = text.find("arguments"); i != text.npos; i = text.find("arguments", i + 1)) {
    if (contains_any(text.substr(i, kNear),
                     {"is string", "is mapping", "is not string", "is not mapping"})) {
      return true;
    }
  }
  return false;
}

// A content list of text parts alone as one string; nothing when it has other parts.
std::optional<std::string> joined_text_parts(const Json& content) {
  std::string text;
  bool first = true;
  for (const Json& part : content.as_array()) {
    const Json* type = part.find("type");
    const Json* value = part.find("text");
    const bool is_text = type == nullptr || (type->is_string() && type->as_string() == "text");
    if (!is_text || value == nullptr || !value->is_string()) return std::nullopt;
    if (!first) text += '\n';
    first = false;
    text += value->as_string();
  }
  return text;
}

std::string token_text(const JsonField& config, const char* key) {
  const std::optional<JsonField> field = config.find(key);
  if (!field) return {};
  return field->value().is_object() ? field->get<std::string>("content") : field->as<std::string>();
}

// chat_template of tokenizer_config.json: a string or a list of {name, template}.
std::string inline_template(const JsonField& config, const std::string& folder) {
  const std::optional<JsonField> field = config.find("chat_template");
  if (!field) {
    throw Error(
        ErrorKind::kNotFound,
        folder + ": neither chat_template.jinja nor chat_template in tokenizer_config.json");
  }
  if (field->value().is_string()) return field->as<std::string>();
  for (const JsonField& entry : field->elements()) {
    if (entry.get<std::string>("name") == "default") return entry.get<std::string>("template");
  }
  field->fail("has no template named 'default'");
}

}  // namespace

struct ChatTemplate::Parsed {
  JinjaBody body;
  std::string source;
  Tokens tokens;
  JinjaLimits limits;
  bool takes_content_lists;   // reads the parts of a content list itself
  bool takes_text_arguments;  // tells arguments given as a JSON text from an object
  bool takes_typescript_tools;
};

ChatTemplate::ChatTemplate(std::string_view text, std::string_view source, Tokens tokens,
                           const JinjaLimits& limits)
    : parsed_(std::make_unique<const Parsed>(
          Parsed{parse_jinja(text, source), std::string(source), std::move(tokens), limits,
                 contains_any(text, {"'text'", "\"text\"", ".text"}), tells_text_arguments(text),
                 contains_any(text, {"tools_ts_str"})})) {}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

// Almost any text is a template, a pointer to one too, and so are most bytes.
ChatTemplate ChatTemplate::from_file_text(std::string_view text, const std::string& path,
                                          Tokens tokens) {
  std::string other(looks_like(text));
  if (other.empty() && replace_invalid_utf8(text) != text) other = "bytes that are no UTF-8";
  if (!other.empty()) throw Error(ErrorKind::kBadFile, path + ": not a template but " + other);
  return ChatTemplate(text, path, std::move(tokens));
}

ChatTemplate ChatTemplate::from_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  const fs::path file = fs::path(folder) / "chat_template.jinja";
  const fs::path config_path = fs::path(folder) / "tokenizer_config.json";
  const bool has_file = fs::exists(file);
  if (!has_file && !fs::exists(config_path)) {
    throw Error(ErrorKind::kNotFound,
                folder + ": neither chat_template.jinja nor tokenizer_config.json");
  }
  const Json document = fs::exists(config_path) ? read_json_file(config_path) : Json::object();
  const JsonField config(document, config_path.string());
  Tokens tokens{token_text(config, "bos_token"), token_text(config, "eos_token"),
                token_text(config, "pad_token"), token_text(config, "unk_token")};
  if (has_file) {
    const MappedFile text(file);
    return from_file_text(text.text(), file.string(), std::move(tokens));
  }
  return ChatTemplate(inline_template(config, folder), config_path.string() + ": chat_template",
                      std::move(tokens));
}

// Clients write the same thing in several ways: no content, null, "" and []; reasoning that is
// absent, null or "". All give one prompt.
Json ChatTemplate::normalized_message(const Json& message) const {
  if (!message.is_object()) bad_request("messages: every message must be an object");
  Json::Object out;
  for (const auto& [key, value] : message.as_object()) {
    if (key == "reasoning_content") {
      if (value.is_string() && !value.as_string().empty()) out.emplace_back(key, value);
    } else if (key == "content" && (value.is_null() || (value.is_array() && value.size() == 0))) {
      out.emplace_back(key, Json(""));
    } else if (key == "content" && value.is_array() && !parsed_->takes_content_lists) {
      const std::optional<std::string> text = joined_text_parts(value);
      out.emplace_back(key, text ? Json(*text) : value);
    } else if (key == "tool_calls") {
      if (value.is_array() && value.size() != 0)
        out.emplace_back(key, normalized_tool_calls(value));
    } else {
      out.emplace_back(key, value);
    }
  }
  Json normalized(std::move(out));
  if (normalized.find("role") == nullptr || !normalized.find("role")->is_string()) {
    bad_request("messages: every message needs a role");
  }
  if (normalized.find("content") == nullptr) normalized["content"] = Json("");
  return normalized;
}

// Templates that print arguments as JSON expect the object, not its text.
Json ChatTemplate::normalized_tool_calls(const Json& calls) const {
  Json out = calls;
  if (parsed_->takes_text_arguments) return out;
  for (Json& call : out.as_array()) {
    Json* function = call.find("function");
    Json* arguments = function == nullptr ? nullptr : function->find("arguments");
    if (arguments == nullptr || !arguments->is_string()) continue;
    const std::string text = arguments->as_string();
    *arguments = parse_json(text.find_first_not_of(" \t\r\n") == text.npos ? "{}" : text,
                            "messages: tool call arguments",
                            {.max_depth = 64, .error_kind = ErrorKind::kInvalidArgument});
  }
  return out;
}

MarkedText ChatTemplate::render(const ChatInput& input) const {
  if (!input.messages.is_array()) bad_request("messages: must be an array");
  if (!input.tools.is_null() && !input.tools.is_array()) bad_request("tools: must be an array");
  Json::Array messages;
  for (const Json& message : input.messages.as_array()) {
    messages.push_back(normalized_message(message));
  }
  JinjaVariables variables;
  const auto token = [&](const char* name, const std::string& text) {
    if (!text.empty()) variables.emplace_back(name, JinjaValue::string(text, true));
  };
  token("bos_token", parsed_->tokens.bos);
  token("eos_token", parsed_->tokens.eos);
  token("pad_token", parsed_->tokens.pad);
  token("unk_token", parsed_->tokens.unk);
  variables.emplace_back("messages", JinjaValue::from_json(Json(std::move(messages))));
  variables.emplace_back("add_generation_prompt", JinjaValue::boolean(input.add_generation_prompt));
  const bool has_tools = input.tools.size() != 0;
  const Json::Object kwargs = normalized_kwargs(input.kwargs);
  const bool text_given = Json(kwargs).find("tools_ts_str") != nullptr;
  JinjaValue tools = has_tools ? JinjaValue::from_json(input.tools) : JinjaValue::none();
  if (has_tools && parsed_->takes_typescript_tools && !text_given) {
    // Where the text cannot be made the template falls back to JSON with sorted keys.
    tools = JinjaValue::from_json(sort_keys(input.tools));
    if (const std::optional<std::string> text = tools_to_typescript(input.tools)) {
      variables.emplace_back("tools_ts_str", JinjaValue::string(*text, false));
    }
  }
  variables.emplace_back("tools", std::move(tools));
  variables.emplace_back("documents", JinjaValue::none());
  for (const auto& [name, value] : kwargs) {
    variables.emplace_back(name, JinjaValue::from_json(value));
  }
  return run_jinja(parsed_->body, std::move(variables), input.now, parsed_->limits,
                   parsed_->source);
}

}  // namespace coppice
