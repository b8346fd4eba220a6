#include "server/structured_request.h"

#include <algorithm>
#include <iterator>

#include "server/json_schema_check.h"

namespace coppice {
namespace {

constexpr std::size_t kMaxGrammarBytes = std::size_t{256} << 10;
constexpr std::size_t kMaxChoiceWords = 10'000;

using Kind = GrammarSpec::Kind;

GrammarRequest request_of(Kind kind, std::string text, const JsonField& field) {
  return {.spec = {.kind = kind, .text = std::move(text)}, .field = field.path()};
}

// A schema as an object, or as text that holds one.
GrammarRequest schema_request(const JsonField& field) {
  if (!field.value().is_string()) {
    check_json_schema(field, false);
    return request_of(Kind::kJsonSchema, write_json(with_json_patterns(field.value())), field);
  }
  const Json parsed = parse_json(field.value().as_string(), field.path(),
                                 {.error_kind = ErrorKind::kInvalidArgument});
  check_json_schema(JsonField(parsed, field.path(), ErrorKind::kInvalidArgument), false);
  return request_of(Kind::kJsonSchema, write_json(with_json_patterns(parsed)), field);
}

GrammarRequest regex_request(const JsonField& field) {
  auto pattern = field.as<std::string>();
  if (pattern.empty()) field.fail("is empty");
  if (pattern.size() > kMaxPatternBytes)
    field.fail("is longer than " + std::to_string(kMaxPatternBytes) + " bytes");
  return request_of(Kind::kRegex, std::move(pattern), field);
}

GrammarRequest grammar_request(const JsonField& field) {
  auto text = field.as<std::string>();
  if (text.size() > kMaxGrammarBytes)
    field.fail("is longer than " + std::to_string(kMaxGrammarBytes) + " bytes");
  const bool ebnf = text.find("::=") != std::string::npos;
  return request_of(ebnf ? Kind::kEbnf : Kind::kLark, std::move(text), field);
}

std::string ebnf_quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (c == '\n' || c == '\r' || c == '\t')
      quoted += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    else
      quoted += c;
  }
  return quoted + '"';
}

GrammarRequest choice_request(const JsonField& field) {
  const auto words = field.as<std::vector<std::string>>();
  if (words.empty() || words.size() > kMaxChoiceWords)
    field.fail("must hold from 1 to " + std::to_string(kMaxChoiceWords) + " strings");
  std::string rule = "root ::= ";
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i].empty()) field.fail("holds an empty string");
    rule += (i == 0 ? "" : " | ") + ebnf_quoted(words[i]);
  }
  return request_of(Kind::kEbnf, rule, field);
}

GrammarRequest structural_tag_request(const JsonField& field) {
  if (field.value().is_string())
    return request_of(Kind::kStructuralTag, field.value().as_string(), field);
  return request_of(Kind::kStructuralTag, write_json(field.value()), field);
}

std::optional<GrammarRequest> response_format(const JsonField& format) {
  const auto type = format.get<std::string>("type");
  if (type == "text") return std::nullopt;
  if (type == "json_object") return request_of(Kind::kJsonSchema, R"({"type":"object"})", format);
  if (type == "structural_tag") return structural_tag_request(format);
  if (type != "json_schema")
    format.at("type").fail("must be text, json_object, json_schema or structural_tag");
  // Chat nests name and schema under json_schema; Responses has them beside the type.
  const auto nested = format.find("json_schema");
  if (!nested && !format.has("schema")) format.fail("has neither json_schema nor schema");
  if (!nested) return schema_request(format.at("schema"));
  if (const auto schema = nested->find("schema")) return schema_request(*schema);
  // OpenAI lets the schema be absent, which any JSON fits; not so one by another name.
  nested->allow_only({"name", "description", "schema", "strict"});
  return request_of(Kind::kJsonSchema, "{}", format);
}

// Of vLLM: about its backends.
constexpr std::string_view kOptionsOfOthers[] = {"backend",
                                                 "_backend",
                                                 "_backend_was_auto",
                                                 "disable_fallback",
                                                 "disable_any_whitespace",
                                                 "disable_additional_properties",
                                                 "whitespace_pattern"};

std::optional<GrammarRequest> structured_outputs(const JsonField& given) {
  std::optional<GrammarRequest> found;
  for (const auto& [key, value] : given.members()) {
    if (value.value().is_null() || value.value() == Json(false)) continue;
    std::optional<GrammarRequest> asked;
    if (key == "json") asked = schema_request(value);
    if (key == "json_object") asked = request_of(Kind::kJsonSchema, R"({"type":"object"})", value);
    if (key == "regex") asked = regex_request(value);
    if (key == "choice") asked = choice_request(value);
    if (key == "grammar") asked = grammar_request(value);
    if (key == "structural_tag") asked = structural_tag_request(value);
    if (key == "whitespace_pattern") value.fail("is not supported: white space is the grammar's");
    if (!asked && std::ranges::find(kOptionsOfOthers, key) == std::end(kOptionsOfOthers))
      value.fail("unknown; there are json, json_object, regex, choice, grammar, structural_tag");
    if (!asked) continue;
    if (found) given.fail("asks for more than one of json, regex, choice, grammar, ...");
    found = std::move(asked);
  }
  return found;
}

}  // namespace

void require_grammars(const std::string& field) {
  if (!has_grammars())
    throw ApiError(501, field + " needs structured output, which this build does not have", field);
}

std::optional<GrammarRequest> parse_structured_output(const JsonField& body) {
  std::optional<GrammarRequest> found;
  const auto take = [&](std::optional<GrammarRequest> asked) {
    if (!asked) return;
    require_grammars(asked->field);
    if (found)
      throw ApiError(400, asked->field + ": " + found->field + " asks for a grammar already",
                     asked->field);
    found = std::move(asked);
  };
  if (const auto field = body.find("response_format")) take(response_format(*field));
  if (const auto field = body.find("structured_outputs")) take(structured_outputs(*field));
  for (const char* key : {"guided_json", "json_schema"})
    if (const auto field = body.find(key)) take(schema_request(*field));
  for (const char* key : {"guided_regex", "regex"})
    if (const auto field = body.find(key)) take(regex_request(*field));
  for (const char* key : {"guided_grammar", "ebnf", "grammar"})
    if (const auto field = body.find(key); field && field->value() != Json(""))
      take(grammar_request(*field));
  if (const auto field = body.find("guided_choice")) take(choice_request(*field));
  if (body.get<bool>("guided_json_object", false))
    take(request_of(Kind::kJsonSchema, R"({"type":"object"})", body.at("guided_json_object")));
  return found;
}

}  // namespace coppice
