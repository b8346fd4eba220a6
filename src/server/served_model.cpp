#include "server/served_model.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>

#include "engine/model_text.h"
#include "io/json_field.h"
#include "io/text_file.h"

namespace coppice {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kThinkEnd = "</think>";
constexpr std::string_view kToolCall = "<tool_call>";
constexpr std::string_view kToolSection = "<|tool_calls_section_begin|>";

// Whether thoughts are parsed. All names are spellings of the one set of rules there is.
bool choose_reasoning(const std::string& asked, bool has_marks) {
  constexpr std::array<std::string_view, 4> kNames = {"kimi_k2", "kimi_k25", "qwen3",
                                                      "deepseek_r1"};
  if (asked == "auto") return has_marks;
  if (asked == "none" || asked.empty()) return false;
  if (std::find(kNames.begin(), kNames.end(), asked) == kNames.end()) {
    std::string known;
    for (const std::string_view name : kNames) known += ", " + std::string(name);
    throw Error(ErrorKind::kUnsupported,
                "--reasoning-parser " + asked + ": not here; there are auto, none" + known);
  }
  if (!has_marks)
    throw Error(ErrorKind::kInvalidArgument,
                "--reasoning-parser " + asked + ": the model's tokenizer has no such marks");
  return true;
}

// How the template tells a model to write its calls; empty without a template or tools in it.
std::string prompt_with_a_tool(const std::optional<ChatTemplate>& chat_template) {
  if (!chat_template) return {};
  ChatInput input;
  input.messages = Json::array({Json::object({{"role", "user"}, {"content", "x"}})});
  input.tools = Json::array({Json::object(
      {{"type", "function"},
       {"function",
        Json::object({{"name", "f"},
                      {"description", "d"},
                      {"parameters",
                       Json::object({{"type", "object"}, {"properties", Json::object()}})}})}})});
  input.kwargs = Json::object();
  try {
    return chat_template->render(input).text();
  } catch (const Error&) {
    return {};
  }
}

ToolFormat format_of_template(const std::optional<ChatTemplate>& chat_template) {
  const std::string prompt = prompt_with_a_tool(chat_template);
  const auto has = [&](std::string_view text) { return prompt.find(text) != prompt.npos; };
  if (has(kToolCall) && has("\"arguments\"")) return ToolFormat::kHermes;
  if (has("\"parameters\": dictionary of argument")) return ToolFormat::kJson;  // Llama 3
  return ToolFormat::kNone;
}

ToolSyntax choose_tools(const std::string& asked, const Tokenizer& tokenizer,
                        const std::optional<ChatTemplate>& chat_template) {
  if (asked == "none" || asked.empty()) return {};
  const bool has_sections = tokenizer.added_token_id(kToolSection).has_value();
  ToolSyntax syntax{.tags_are_tokens = tokenizer.added_token_id(kToolCall).has_value()};
  if (asked == "auto") {
    syntax.format = has_sections ? ToolFormat::kKimi : format_of_template(chat_template);
    return syntax;
  }
  const auto format = tool_format_of(asked);
  if (!format)
    throw Error(
        ErrorKind::kUnsupported,
        "--tool-call-parser " + asked + ": not here; there are auto, none, " + tool_format_names());
  if (*format == ToolFormat::kKimi && !has_sections)
    throw Error(ErrorKind::kInvalidArgument,
                "--tool-call-parser " + asked + ": the model's tokenizer has no such marks");
  syntax.format = *format;
  return syntax;
}

Json json_object_flag(const std::string& text, const std::string& flag) {
  if (text.empty()) return Json::object();
  Json value = parse_json(text, flag, {.error_kind = ErrorKind::kInvalidArgument});
  if (!value.is_object())
    throw Error(ErrorKind::kInvalidArgument, flag + ": must be a JSON object");
  return value;
}

void take_defaults(const Json& document, const std::string& source, ServedModel& model) {
  const JsonField json(document, source, ErrorKind::kInvalidArgument);
  SamplingParams& defaults = model.defaults;
  defaults.temperature = json.get<double>("temperature", defaults.temperature);
  defaults.top_p = json.get<double>("top_p", defaults.top_p);
  defaults.top_k = json.get<std::int64_t>("top_k", defaults.top_k);
  defaults.min_p = json.get<double>("min_p", defaults.min_p);
  defaults.repetition_penalty = json.get<double>("repetition_penalty", defaults.repetition_penalty);
  if (const auto limit = json.find("max_new_tokens"))
    model.default_max_tokens = limit->as<std::int64_t>();
  try {
    defaults.validate(std::numeric_limits<std::int32_t>::max());
  } catch (const Error& error) {
    throw Error(error.kind(), source + ": " + error.what());
  }
}

std::optional<ChatTemplate> load_template(const std::string& flag, const std::string& path) {
  if (!flag.empty()) {
    if (flag.find_first_of("{\n") != std::string::npos)
      return ChatTemplate(flag, "--chat-template");
    return ChatTemplate::from_file_text(read_text_file(flag, "--chat-template " + flag), flag, {});
  }
  try {
    return load_chat_template(path);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kNotFound) throw;
    return std::nullopt;  // a base model
  }
}

}  // namespace

bool ServedModel::answers_to(const std::string& asked) const {
  return std::find(names.begin(), names.end(), asked) != names.end();
}

std::unique_ptr<ServedModel> ServedModel::load(const ServedModelOptions& options,
                                               const std::string& path) {
  auto model = std::unique_ptr<ServedModel>(new ServedModel{
      .names = options.names,
      .root = path,
      .tokenizer = load_tokenizer(path),
      .chat_template = load_template(options.chat_template, path),
      .defaults = {},
      .default_max_tokens = {},
      .template_kwargs =
          json_object_flag(options.default_chat_template_kwargs, "--default-chat-template-kwargs"),
      .eos_text = {},
      .description = {}});
  if (model->names.empty()) model->names = {options.model};
  model->created = std::time(nullptr);
  model->trust_request_chat_template = options.trust_request_chat_template;
  const bool thinks = model->tokenizer.added_token_id(kThinkEnd).has_value();
  model->parse_reasoning = choose_reasoning(options.reasoning_parser, thinks);
  model->tools = choose_tools(options.tool_call_parser, model->tokenizer, model->chat_template);
  const fs::path generation = fs::path(path) / "generation_config.json";
  if (options.generation_config != "vllm" && fs::exists(generation))
    take_defaults(read_json_file(generation), generation.string(), *model);
  const Json given =
      json_object_flag(options.override_generation_config, "--override-generation-config");
  JsonField(given, "--override-generation-config", ErrorKind::kInvalidArgument)
      .allow_only(
          {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens"});
  take_defaults(given, "--override-generation-config", *model);
  return model;
}

void ServedModel::take_limits(const Engine& engine) {
  vocab_size = engine.model_config().vocab_size;
  max_model_len = engine.max_model_len();
  max_request_len = engine.max_request_len();
  const auto& eos = engine.model_config().eos_token_ids;
  if (!eos.empty()) eos_text = tokenizer.token_bytes(static_cast<std::int32_t>(eos.front()));
  description = engine.describe();
}

}  // namespace coppice
