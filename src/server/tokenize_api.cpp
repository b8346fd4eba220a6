#include "server/tokenize_api.h"

#include "server/chat_request.h"
#include "server/event_stream.h"

namespace coppice {
void tokenize(const ServedModel& model, const HttpRequest& request, HttpResponder& responder) {
  const Json document = parse_body(request.body);
  const JsonField body = body_fields(document);
  check_model(body, model);
  std::vector<std::int32_t> ids;
  if (body.has("messages")) {
    ids = render_chat(parse_chat_request(body, model), model).token_ids;
  } else {
    // SGLang and llama.cpp call it text and content.
    const char* key = body.has("prompt") ? "prompt" : body.has("content") ? "content" : "prompt";
    const auto text = body.get<std::string>(body.has("text") ? "text" : key);
    const bool parse_special = body.get<bool>("parse_special", true);
    const bool add = body.has("content") ? body.get<bool>("add_special", false)
                                         : body.get<bool>("add_special_tokens", true);
    ids = add ? model.tokenizer.encode_prompt(text, parse_special)
              : model.tokenizer.encode(text, parse_special);
  }
  Json texts = Json::array();
  for (const std::int32_t id : ids) texts.push_back(model.tokenizer.token_bytes(id));
  const bool wants_texts = body.get<bool>("return_token_strs", false);
  send_json(responder, Json::object({{"count", std::ssize(ids)},
                                     {"max_model_len", model.max_model_len},
                                     {"tokens", token_ids_json(ids)},
                                     {"token_strs", wants_texts ? std::move(texts) : Json()}}));
}

void detokenize(const ServedModel& model, const HttpRequest& request, HttpResponder& responder) {
  const Json document = parse_body(request.body);
  const JsonField body = body_fields(document);
  check_model(body, model);
  const auto ids = token_ids_of(body.at("tokens"), model);
  const std::string text =
      model.tokenizer.decode(ids, body.get<bool>("skip_special_tokens", false));
  send_json(responder, Json::object({{"prompt", text}, {"text", text}}));
}

void tokenizer_info(const ServedModel& model, HttpResponder& responder) {
  Json added = Json::array();
  for (const AddedToken& token : model.tokenizer.added_tokens())
    added.push_back(
        Json::object({{"id", token.id}, {"content", token.text}, {"special", token.special}}));
  const auto prefix = model.tokenizer.prompt_prefix();
  send_json(
      responder,
      Json::object({{"tokenizer_class", "byte_level_bpe"},
                    {"vocab_size", static_cast<std::int64_t>(model.tokenizer.vocab_size())},
                    {"model_max_length", model.max_model_len},
                    {"bos_token", prefix.empty() ? Json() : Json(model.tokenizer.decode(prefix))},
                    {"eos_token", model.eos_text.empty() ? Json() : Json(model.eos_text)},
                    {"added_tokens", std::move(added)}}));
}

}  // namespace coppice
