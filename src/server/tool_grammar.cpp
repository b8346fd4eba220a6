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
      entry.parameters = with_json_patterns(given->value());
    }
    list.push_back(std::move(entry));
  }
  return list;
}

Json arguments_of(const Tool& tool) {
  return Json::object({{"type", "json_schema"},
                       {"json_schema", tool.parameters},
                       {"max_whitespace_cnt", kMaxSpaces}});
}
Json star(Json content) {
  return Json::object({{"type", "star"}, {"content", std::move(content)}});
}

// Kimi: one call, its id with the index as `index` says, then its arguments.
Json kimi_call(const std::vector<Tool>& tools, const Json& index, const ServedModel& model) {
  Json::Array list;
  for (const Tool& tool : tools)
    list.push_back(sequence({literal("functions." + tool.name + ":"), index,
                             token(model, "<|tool_call_argument_begin|>"), arguments_of(tool)}));
  return sequence({token(model, "<|tool_call_begin|>"), any_of(std::move(list)),
                   token(model, "<|tool_call_end|>")});
}

// What follows the section's begin, its end included.
Json kimi_section(const ToolRules& rules, const std::vector<Tool>& tools, std::size_t first_index,
                  const ServedModel& model) {
  Json::Array section = {kimi_call(tools, literal(std::to_string(first_index)), model)};
  if (rules.parallel) {
    const Json any_index = Json::object({{"type", "regex"}, {"pattern", "[1-9][0-9]{0,3}"}});
    section.push_back(star(kimi_call(tools, any_index, model)));
  }
  section.push_back(token(model, "<|tool_calls_section_end|>"));
  return sequence(std::move(section));
}

Json kimi_free(Json section, const ServedModel& model) {
  const Json begin = token(model, "<|tool_calls_section_begin|>");
  const Json rule = Json::array({*begin.find("token"), std::move(section)});
  Json excluded = Json::array();
  for (const char* mark : {"<|tool_call_begin|>", "<|tool_call_argument_begin|>"})
    excluded.push_back(*token(model, mark).find("token"));
  return Json::object({{"type", "token_dispatch"},
                       {"rules", Json::array({rule})},
                       {"exclude_tokens", std::move(excluded)}});
}

// The other formats: an object around name and arguments, in tags or bare.
struct ObjectForm {
  std::string open, middle, close, between;
};
ObjectForm object_form(const ServedModel& model) {
  if (model.tools.format == ToolFormat::kHermes)
    return {.open = "<tool_call>\n{\"name\": ",
            .middle = ", \"arguments\": ",
            .close = "}\n</tool_call>",
            .between = "\n"};
  return {.open = "{\"name\": ", .middle = ", \"parameters\": ", .close = "}", .between = "; "};
}

std::string begin_of(const ObjectForm& form, const Tool& tool) {
  return form.open + write_json(Json(tool.name)) + form.middle;
}

// Tags that are tokens of their own come as such.
Json written(const std::string& text, const ServedModel& model) {
  Json::Array parts;
  std::size_t begin = 0;
  for (const char* tag : {"<tool_call>", "</tool_call>"}) {
    const std::size_t at = text.find(tag);
    if (!model.tools.tags_are_tokens || at == text.npos) continue;
    if (at > begin) parts.push_back(literal(text.substr(begin, at - begin)));
    parts.push_back(token(model, tag));
    begin = at + std::string_view(tag).size();
  }
  if (begin < text.size()) parts.push_back(literal(text.substr(begin)));
  return sequence(std::move(parts));
}

Json object_section(const ToolRules& rules, const std::vector<Tool>& tools,
                    const ServedModel& model) {
  const ObjectForm form = object_form(model);
  Json::Array list;
  for (const Tool& tool : tools)
    list.push_back(sequence(
        {written(begin_of(form, tool), model), arguments_of(tool), written(form.close, model)}));
  Json call = any_of(std::move(list));
  if (!rules.parallel) return call;
  return sequence({call, star(sequence({literal(form.between), call}))});
}

Json object_free(const std::vector<Tool>& tools, const ServedModel& model) {
  const ObjectForm form = object_form(model);
  if (model.tools.format == ToolFormat::kHermes && model.tools.tags_are_tokens) {
    Json::Array list;
    const std::string_view tag = "<tool_call>";
    for (const Tool& tool : tools)
      list.push_back(sequence({literal(begin_of(form, tool).substr(tag.size())), arguments_of(tool),
                               written(form.close, model)}));
    const Json rule = Json::array({*token(model, tag).find("token"), any_of(std::move(list))});
    return Json::object({{"type", "token_dispatch"}, {"rules", Json::array({rule})}});
  }
  Json::Array tags;
  for (const Tool& tool : tools)
    tags.push_back(Json::object({{"type", "tag"},
                                 {"begin", begin_of(form, tool)},
                                 {"content", arguments_of(tool)},
                                 {"end", form.close}}));
  return Json::object({{"type", "triggered_tags"},
                       {"triggers", Json::array({form.open})},
                       {"tags", Json(std::move(tags))}});
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
  const bool kimi = model.tools.format == ToolFormat::kKimi;
  Json section = kimi ? kimi_section(rules, callable, first_index, model)
                      : object_section(rules, callable, model);
  Json format;
  if (required || content) {
    if (kimi) section = sequence({token(model, "<|tool_calls_section_begin|>"), section});
    format = std::move(section);
    if (!required) {
      const Json text = format_of(content->spec);
      if (text.is_null()) return content;
      format = any_of({std::move(format), text});
    }
  } else {
    format = kimi ? kimi_free(std::move(section), model) : object_free(callable, model);
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
