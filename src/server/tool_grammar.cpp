#include "server/tool_grammar.h"

#include <algorithm>

#include "server/json_schema_check.h"
#include "server/structured_request.h"

namespace coppice {
namespace {

constexpr int kMaxSpaces = 2;  // in a row, within arguments: the models write compact JSON

// Pieces of xgrammar's structural tags.
Json token(const ServedModel& model, std::string_view mark) {
  const auto id = model.tokenizer.added_token_id(mark);
  if (!id) throw ApiError(501, "tools: the tokenizer has no " + std::string(mark), "tools");
  return Json::object({{"type", "token"}, {"token", *id}});
}
Json sequence(Json::Array elements) {
  return Json::object({{"type", "sequence"}, {"elements", Json(std::move(elements))}});
}
Json any_of(Json::Array elements) {
  if (elements.size() == 1) return elements.front();
  return Json::object({{"type", "or"}, {"elements", Json(std::move(elements))}});
}
Json literal(const std::string& text) {
  return Json::object({{"type", "const_string"}, {"value", text}});
}

struct Tool {
  std::string name;
  Json parameters;  // a schema
  bool strict = false;
};

std::vector<Tool> callable_tools(const ToolRules& rules, const Json& tools) {
  std::vector<Tool> list;
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const JsonField tool(tools.as_array()[i], "request body", ErrorKind::kInvalidArgument);
    const JsonField function = tool.at("function");
    Tool entry{.name = function.get<std::string>("name"),
               .parameters = Json::object({{"type", "object"}}),
               .strict = function.get<bool>("strict", false)};
    if (!rules.names.empty() &&
        std::find(rules.names.begin(), rules.names.end(), entry.name) == rules.names.end())
      continue;
    const bool enforced = rules.mode == ToolRules::Mode::kRequired || entry.strict;
    if (const auto given = function.find("parameters");
        given && given->value().size() > 0 && enforced) {
      const std::string place = "tools[" + std::to_string(i) + "].function.parameters";
      try {
        check_json_schema(JsonField(given->value(), place, ErrorKind::kInvalidArgument),
                          !entry.strict);
      } catch (const Error& error) {
        throw ApiError(400, error.what(), place);
      }
      entry.parameters = given->value();
    }
    list.push_back(std::move(entry));
  }
  return list;
}

// One call: its id with the index as `index` says, then its arguments.
Json calls(const std::vector<Tool>& tools, const Json& index, const ServedModel& model) {
  Json::Array list;
  for (const Tool& tool : tools)
    list.push_back(sequence({literal("functions." + tool.name + ":"), index,
                             token(model, "<|tool_call_argument_begin|>"),
                             Json::object({{"type", "json_schema"},
                                           {"json_schema", tool.parameters},
                                           {"max_whitespace_cnt", kMaxSpaces}})}));
  return sequence({token(model, "<|tool_call_begin|>"), any_of(std::move(list)),
                   token(model, "<|tool_call_end|>")});
}

// Null for grammars that have no such form.
Json format_of(const GrammarSpec& spec) {
  if (spec.kind == GrammarSpec::Kind::kJsonSchema)
    return Json::object(
        {{"type", "json_schema"}, {"json_schema", parse_json(spec.text, "schema")}});
  if (spec.kind == GrammarSpec::Kind::kRegex)
    return Json::object({{"type", "regex"}, {"pattern", spec.text}});
  if (spec.kind == GrammarSpec::Kind::kEbnf)
    return Json::object({{"type", "grammar"}, {"grammar", spec.text}});
  return {};
}

}  // namespace

std::optional<GrammarRequest> tool_grammar(const ToolRules& rules, const Json& tools,
                                           const std::optional<GrammarRequest>& content,
                                           std::size_t first_index, const ServedModel& model) {
  if (rules.mode == ToolRules::Mode::kFree && !content) return std::nullopt;
  const bool required = rules.mode == ToolRules::Mode::kRequired;
  require_grammars(required ? "tool_choice" : "tools");
  const std::vector<Tool> callable = callable_tools(rules, tools);
  Json::Array section = {calls(callable, literal(std::to_string(first_index)), model)};
  if (rules.parallel) {
    const Json any_index = Json::object({{"type", "regex"}, {"pattern", "[1-9][0-9]{0,3}"}});
    section.push_back(
        Json::object({{"type", "star"}, {"content", calls(callable, any_index, model)}}));
  }
  section.push_back(token(model, "<|tool_calls_section_end|>"));
  const Json begin = token(model, "<|tool_calls_section_begin|>");
  Json format;
  if (required || content) {
    section.insert(section.begin(), begin);
    format = sequence(std::move(section));
    if (!required) {
      const Json text = format_of(content->spec);
      if (text.is_null()) return content;
      format = any_of({std::move(format), text});
    }
  } else {
    const Json rule = Json::array({*begin.find("token"), sequence(std::move(section))});
    Json excluded = Json::array();
    for (const char* mark : {"<|tool_call_begin|>", "<|tool_call_argument_begin|>"})
      excluded.push_back(*token(model, mark).find("token"));
    format = Json::object({{"type", "token_dispatch"},
                           {"rules", Json::array({rule})},
                           {"exclude_tokens", std::move(excluded)}});
  }
  const bool strict =
      std::any_of(callable.begin(), callable.end(), [](const Tool& tool) { return tool.strict; });
  return GrammarRequest{.spec = {.kind = GrammarSpec::Kind::kStructuralTag,
                                 .text = write_json(Json::object(
                                     {{"type", "structural_tag"}, {"format", std::move(format)}})),
                                 .lenient = !strict},
                        .field = required  ? "tool_choice"
                                 : content ? content->field
                                           : "tools"};
}

}  // namespace coppice
