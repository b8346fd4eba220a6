#include "server/openapi.h"

#include <map>

namespace coppice {
namespace {

Json type(const char* name) {
  return Json::object({{"type", name}});
}
Json number(double lowest, double highest) {
  return Json::object({{"type", "number"}, {"minimum", lowest}, {"maximum", highest}});
}
Json integer(std::int64_t lowest, std::int64_t highest) {
  return Json::object({{"type", "integer"}, {"minimum", lowest}, {"maximum", highest}});
}
Json list_of(Json items) {
  return Json::object({{"type", "array"}, {"items", std::move(items)}});
}
Json one_of(std::initializer_list<Json> choices) {
  return Json::object({{"anyOf", Json::array(choices)}});
}
Json schema(Json properties, std::initializer_list<Json> required) {
  return Json::object({{"type", "object"},
                       {"properties", std::move(properties)},
                       {"required", Json::array(required)}});
}

// Fields of every generating endpoint (request_common.h).
Json common_properties() {
  return Json::object({{"model", type("string")},
                       {"temperature", number(0, 2)},
                       {"top_p", number(0.001, 1)},
                       {"top_k", integer(-1, 1000)},
                       {"min_p", number(0, 1)},
                       {"repetition_penalty", number(0.1, 2)},
                       {"presence_penalty", number(-2, 2)},
                       {"frequency_penalty", number(-2, 2)},
                       {"max_tokens", integer(0, 16)},
                       {"min_tokens", integer(0, 16)},
                       {"n", integer(1, 4)},
                       {"seed", integer(-9007199254740991, 9007199254740991)},
                       {"stop", one_of({type("string"), list_of(type("string"))})},
                       {"stop_token_ids", list_of(type("integer"))},
                       {"logit_bias", type("object")},
                       {"stream", type("boolean")},
                       {"stream_options", type("object")},
                       {"ignore_eos", type("boolean")},
                       {"include_stop_str_in_output", type("boolean")},
                       {"skip_special_tokens", type("boolean")},
                       {"return_token_ids", type("boolean")},
                       {"truncate_prompt_tokens", integer(-1, 4096)},
                       {"cache_salt", type("string")},
                       {"bad_words", list_of(type("string"))},
                       {"allowed_token_ids", list_of(type("integer"))},
                       {"prompt_logprobs", integer(0, 20)},
                       {"guided_json", type("object")},
                       {"guided_regex", type("string")},
                       {"guided_choice", list_of(type("string"))},
                       {"guided_grammar", type("string")},
                       {"structured_outputs", type("object")},
                       {"ddtree_budget", integer(-1, 64)}});
}

Json message_schema() {
  return schema(
      Json::object(
          {{"role", Json::object({{"type", "string"},
                                  {"enum", Json::array({"system", "user", "assistant", "tool"})}})},
           {"content", type("string")}}),
      {"role"});
}

Json with(Json properties, std::initializer_list<Json::Member> more) {
  for (const auto& [key, value] : more) properties[key] = value;
  return properties;
}

std::map<std::string, Json> body_schemas() {
  const Json prompt = one_of({type("string"), list_of(type("string")), list_of(type("integer")),
                              list_of(list_of(type("integer")))});
  const Json chat =
      schema(with(common_properties(), {{"messages", list_of(message_schema())},
                                        {"logprobs", type("boolean")},
                                        {"top_logprobs", integer(0, 20)},
                                        {"tools", list_of(type("object"))},
                                        {"tool_choice", one_of({type("string"), type("object")})},
                                        {"chat_template_kwargs", type("object")},
                                        {"response_format", type("object")},
                                        {"reasoning_effort", type("string")},
                                        {"continue_final_message", type("boolean")},
                                        {"add_generation_prompt", type("boolean")}}),
             {"messages"});
  const Json anthropic = schema(Json::object({{"model", type("string")},
                                              {"max_tokens", integer(1, 16)},
                                              {"messages", list_of(message_schema())},
                                              {"system", type("string")},
                                              {"stop_sequences", list_of(type("string"))},
                                              {"stream", type("boolean")},
                                              {"tools", list_of(type("object"))}}),
                                {"messages", "max_tokens"});
  return {
      {"/v1/chat/completions", chat},
      {"/v1/chat/completions/render", chat},
      {"/v1/completions",
       schema(with(common_properties(),
                   {{"prompt", prompt}, {"echo", type("boolean")}, {"logprobs", integer(0, 20)}}),
              {"prompt"})},
      {"/v1/responses",
       schema(Json::object({{"input", one_of({type("string"), list_of(type("object"))})},
                            {"instructions", type("string")},
                            {"max_output_tokens", integer(1, 16)},
                            {"temperature", number(0, 2)},
                            {"stream", type("boolean")},
                            {"tools", list_of(type("object"))}}),
              {"input"})},
      {"/v1/messages", anthropic},
      {"/v1/messages/count_tokens", anthropic},
      {"/tokenize", schema(Json::object({{"prompt", type("string")}}), {"prompt"})},
      {"/detokenize", schema(Json::object({{"tokens", list_of(type("integer"))}}), {"tokens"})},
  };
}

Json answers() {
  Json list = Json::object();
  const std::pair<const char*, const char*> kinds[] = {
      {"200", "the answer"},         {"400", "a field is wrong; error.param names it"},
      {"401", "the key is missing"}, {"404", "no such model"},
      {"405", "no such method"},     {"413", "the body is too large"},
      {"429", "the queue is full"},  {"500", "the engine has failed"},
      {"501", "not supported here"}, {"503", "loading, draining or failed"}};
  for (const auto& [status, text] : kinds) list[status] = Json::object({{"description", text}});
  return list;
}

}  // namespace

Json openapi_document(const std::vector<std::string>& route_names, const std::string& version) {
  const std::map<std::string, Json> bodies = body_schemas();
  Json paths = Json::object();
  for (const std::string& route : route_names) {
    const std::size_t space = route.find(' ');
    std::string path = route.substr(space + 1);
    const std::string method = route.substr(0, space) == "GET" ? "get" : "post";
    Json operation = Json::object({{"responses", answers()}});
    if (path.ends_with("/*")) {
      path.replace(path.size() - 1, 1, "{name}");
      operation["parameters"] = Json::array({Json::object(
          {{"name", "name"}, {"in", "path"}, {"required", true}, {"schema", type("string")}})});
    }
    if (const auto body = bodies.find(path); body != bodies.end())
      operation["requestBody"] = Json::object(
          {{"required", true},
           {"content",
            Json::object({{"application/json", Json::object({{"schema", body->second}})}})}});
    paths[path][method] = std::move(operation);
  }
  return Json::object({{"openapi", "3.1.0"},
                       {"info", Json::object({{"title", "Coppice"}, {"version", version}})},
                       {"paths", std::move(paths)}});
}

}  // namespace coppice
