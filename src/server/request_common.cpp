#include "server/request_common.h"

#include <array>
#include <charconv>
#include <cstdio>
#include <random>

#include "server/api_error.h"
#include "server/structured_request.h"

namespace coppice {
namespace {

constexpr std::int64_t kMaxAskedTokens = std::int64_t{1} << 31;  // as far as an error counts

bool is_set(const JsonField& body, std::string_view key) {
  const auto field = body.find(key);
  if (!field) return false;
  const Json& value = field->value();
  if (value.is_bool()) return value.as_bool();
  return !((value.is_array() || value.is_object()) && value.size() == 0);
}

// Fields that would change the output and that are not here yet.
void refuse_unsupported(const JsonField& body) {
  constexpr std::array kNotHere = {"stop_regex", "logits_processors", "kv_transfer_params",
                                   "lora_request", "custom_logit_processor"};
  for (const char* key : kNotHere)
    if (is_set(body, key))
      throw ApiError(501, std::string(key) + " is not supported by this server", key);
  if (const auto modalities = body.find("modalities"))
    for (const JsonField& modality : modalities->elements())
      if (modality.value() != Json("text")) modality.fail("this server answers with text only");
  if (body.get<std::int64_t>("priority", 0) != 0)
    body.at("priority").fail("requests are served in order of arrival: must be 0");
  for (const char* key : {"use_beam_search", "return_hidden_states", "web_search_options"})
    if (is_set(body, key))
      throw ApiError(400, std::string(key) + " is not supported: there is no such thing here", key);
}

std::vector<std::string> parse_stop(const JsonField& body) {
  const auto field = body.find("stop");
  if (!field) return {};
  std::vector<std::string> stop;
  if (field->value().is_string())
    stop = {field->as<std::string>()};
  else
    stop = field->as<std::vector<std::string>>();
  std::erase(stop, "");
  if (std::ssize(stop) > kMaxStopStrings)
    field->fail("holds " + std::to_string(stop.size()) + " strings: at most " +
                std::to_string(kMaxStopStrings));
  for (const std::string& text : stop)
    if (std::ssize(text) > kMaxStopBytes)
      field->fail("a stop string is longer than " + std::to_string(kMaxStopBytes) + " bytes");
  return stop;
}

std::map<std::int64_t, double> parse_logit_bias(const JsonField& body) {
  std::map<std::int64_t, double> bias;
  const auto field = body.find("logit_bias");
  if (!field) return bias;
  for (const auto& [key, value] : field->members()) {
    const double amount = value.as<double>();
    if (amount == 0) continue;  // changes nothing, whatever it is for
    std::int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size())
      field->fail("'" + key + "' is not a token id");
    bias[id] = amount;
  }
  return bias;
}

// vLLM's rule: a word at the beginning of a text and, where a space in front makes another first
// token of it, behind one.
std::vector<std::vector<std::int32_t>> parse_bad_words(const JsonField& body,
                                                       const Tokenizer& tokenizer) {
  std::vector<std::vector<std::int32_t>> ids;
  const auto field = body.find("bad_words");
  if (!field) return ids;
  for (const auto& word : field->as<std::vector<std::string>>()) {
    const std::size_t begin = word.find_first_not_of(' ');
    if (begin == std::string::npos) field->fail("holds an empty word");
    const auto bare = tokenizer.encode(word.substr(begin));
    const auto behind_space = tokenizer.encode(" " + word.substr(begin));
    ids.push_back(bare);
    if (!bare.empty() && behind_space.size() == bare.size() && behind_space.front() != bare.front())
      ids.push_back(behind_space);
  }
  return ids;
}

// vLLM's field, or Anthropic's within `thinking`; -1: no limit.
std::optional<ThinkingBudget> parse_thinking_budget(const JsonField& body,
                                                    const ServedModel& model) {
  auto field = body.find("thinking_token_budget");
  if (!field)
    if (const auto thinking = body.find("thinking"); thinking && thinking->value().is_object())
      field = thinking->find("budget_tokens");
  if (!field) return std::nullopt;
  const auto count = field->as<std::int64_t>();
  if (count == -1) return std::nullopt;
  if (count < 0) field->fail("must be -1 (no limit) or at least 0");
  const auto end = model.tokenizer.added_token_id("</think>");
  if (!end) field->fail("the model's tokenizer has no </think>");
  return ThinkingBudget{
      .num_tokens = count, .begin_id = model.tokenizer.added_token_id("<think>"), .end_id = *end};
}

void parse_sampling(const JsonField& body, const ServedModel& model, SamplingParams& sampling) {
  sampling = model.defaults;
  sampling.temperature = body.get<double>("temperature", sampling.temperature);
  sampling.top_p = body.get<double>("top_p", sampling.top_p);
  sampling.top_k = body.get<std::int64_t>("top_k", sampling.top_k);
  sampling.min_p = body.get<double>("min_p", sampling.min_p);
  sampling.repetition_penalty = body.get<double>("repetition_penalty", sampling.repetition_penalty);
  sampling.presence_penalty = body.get<double>("presence_penalty", 0.0);
  sampling.frequency_penalty = body.get<double>("frequency_penalty", 0.0);
  if (const auto seed = body.find("seed")) sampling.seed = seed->as<std::int64_t>();
  sampling.min_tokens = body.get<std::int64_t>("min_tokens", 0);
  sampling.stop = parse_stop(body);
  sampling.stop_token_ids = body.get<std::vector<std::int64_t>>("stop_token_ids", {});
  sampling.ignore_eos = body.get<bool>("ignore_eos", false);
  sampling.logit_bias = parse_logit_bias(body);
  if (const auto allowed = body.find("allowed_token_ids")) {
    sampling.allowed_token_ids = allowed->as<std::vector<std::int64_t>>();
    if (sampling.allowed_token_ids.empty()) allowed->fail("is empty: must hold at least one id");
  }
  sampling.bad_words_token_ids = parse_bad_words(body, model.tokenizer);
  sampling.thinking_budget = parse_thinking_budget(body, model);
}

std::string random_id() {
  static thread_local std::mt19937_64 engine{std::random_device{}()};
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(engine()),
                static_cast<unsigned long long>(engine()));
  return text;
}

void parse_streaming(const JsonField& body, CommonRequest& request) {
  request.stream = body.get<bool>("stream", false);
  const auto options = body.find("stream_options");
  if (!options) return;
  request.include_usage = options->get<bool>("include_usage", false);
  request.continuous_usage = options->get<bool>("continuous_usage_stats", false);
}

}  // namespace

Json parse_body(const std::string& body) {
  return parse_json(body, "request body", {.error_kind = ErrorKind::kInvalidArgument});
}

JsonField body_fields(const Json& document) {
  return {document, "request body", ErrorKind::kInvalidArgument};
}

std::vector<std::int32_t> token_ids_of(const JsonField& field, const ServedModel& model) {
  auto ids = field.as<std::vector<std::int32_t>>();
  for (const std::int32_t id : ids)
    if (id < 0 || id >= model.vocab_size)
      field.fail("holds " + std::to_string(id) + ": must be token ids from 0 to " +
                 std::to_string(model.vocab_size - 1));
  return ids;
}

Json token_ids_json(std::span<const std::int32_t> ids) {
  Json list = Json::array();
  for (const std::int32_t id : ids) list.push_back(id);
  return list;
}

void check_model(const JsonField& body, const ServedModel& model) {
  const auto asked = body.find("model");
  if (!asked) return;
  const auto name = asked->as<std::string>();
  if (!name.empty() && !model.answers_to(name))
    throw ApiError(404, "The model `" + name + "` does not exist.", "model");
}

CommonRequest parse_common(const JsonField& body, const ServedModel& model) {
  refuse_unsupported(body);
  CommonRequest request;
  parse_sampling(body, model, request.sampling);
  parse_streaming(body, request);
  for (const char* key : {"max_completion_tokens", "max_tokens", "max_new_tokens", "n_predict"}) {
    const auto field = body.find(key);
    if (!field) continue;
    request.max_tokens = field->as<std::int64_t>();
    if (*request.max_tokens < 0) field->fail("is negative");
    break;
  }
  request.n = body.get<std::int64_t>("n", 1);
  if (request.n < 1 || request.n > kMaxChoices)
    body.at("n").fail("must be from 1 to " + std::to_string(kMaxChoices));
  if (const auto best_of = body.find("best_of");
      best_of && best_of->as<std::int64_t>() != request.n)
    best_of->fail("must be n: all outputs that are made are returned");
  request.include_stop = body.get<bool>("include_stop_str_in_output", false);
  request.skip_special_tokens = body.get<bool>("skip_special_tokens", true);
  request.return_token_ids = body.get<bool>("return_token_ids", false);
  request.return_tokens_as_token_ids = body.get<bool>("return_tokens_as_token_ids", false);
  if (const auto field = body.find("truncate_prompt_tokens")) {
    request.truncate_prompt_tokens = field->as<std::int64_t>();
    if (*request.truncate_prompt_tokens < -1 || *request.truncate_prompt_tokens == 0)
      field->fail("must be -1 (to what fits) or at least 1");
  }
  request.truncate_left = body.get("truncation_side", "left") != "right";
  if (const auto field = body.find("prompt_logprobs")) {
    request.sampling.prompt_logprobs = field->as<std::int64_t>();
    if (request.stream) field->fail("is not available with stream");
    if (*request.sampling.prompt_logprobs < 0) request.sampling.prompt_logprobs = kMaxLogprobs;
  }
  if (const auto field = body.find("ddtree_budget"))
    request.ddtree_budget = field->as<std::int64_t>();
  request.grammar = parse_structured_output(body);
  request.cache_salt = body.get("cache_salt", "");
  request.id = body.get("request_id", "");
  if (request.id.empty()) request.id = body.get("rid", "");
  if (request.id.empty()) request.id = random_id();
  return request;
}

void settle_thinking(std::span<const std::int32_t> prompt, SamplingParams& sampling) {
  if (!sampling.thinking_budget) return;
  ThinkingBudget& budget = *sampling.thinking_budget;
  budget.open.reset();
  for (std::int64_t i = std::ssize(prompt) - 1; i >= 0; --i) {
    const std::int32_t id = prompt[static_cast<std::size_t>(i)];
    if (id == budget.end_id) return;
    if (id != budget.begin_id) continue;
    budget.open = std::ssize(prompt) - 1 - i;
    return;
  }
}

void settle_length(CommonRequest& request, std::vector<std::int32_t>& prompt,
                   std::optional<std::int64_t> otherwise, const ServedModel& model,
                   const std::string& field) {
  const std::int64_t limit = model.max_request_len;
  if (request.truncate_prompt_tokens) {
    const std::int64_t room = limit - std::max<std::int64_t>(request.max_tokens.value_or(1), 1);
    const std::int64_t keep =
        *request.truncate_prompt_tokens < 0 ? room : *request.truncate_prompt_tokens;
    const std::int64_t surplus = std::ssize(prompt) - std::max<std::int64_t>(keep, 0);
    if (surplus > 0 && request.truncate_left)
      prompt.erase(prompt.begin(), prompt.begin() + surplus);
    else if (surplus > 0)
      prompt.resize(prompt.size() - static_cast<std::size_t>(surplus));
  }
  const std::int64_t count = std::ssize(prompt);
  if (count == 0) throw ApiError(400, field + " is empty: must hold at least one token", field);
  const std::string maximum =
      "This model's maximum context length is " + std::to_string(limit) + " tokens" +
      (limit < model.max_model_len ? " (what the KV cache holds)" : "") + ". However, ";
  if (count >= limit)
    throw ApiError(400,
                   maximum + field + " holds " + std::to_string(count) +
                       " tokens, which leaves no room for output.",
                   field);
  if (request.max_tokens && *request.max_tokens > limit - count)  // the sum may not fit 64 bits
    throw ApiError(400,
                   maximum + "you requested " +
                       std::to_string(std::min(*request.max_tokens, kMaxAskedTokens) + count) +
                       " tokens (" + std::to_string(count) + " in " + field + ", " +
                       std::to_string(*request.max_tokens) + " for the completion).",
                   "max_tokens");
  std::int64_t most = std::min(otherwise.value_or(limit), limit - count);
  if (model.default_max_tokens) most = std::min(most, *model.default_max_tokens);
  request.sampling.max_tokens = request.max_tokens.value_or(most);
  if (request.sampling.max_tokens > 0) request.sampling.validate(model.vocab_size);
}

OutputTextOptions text_options(const CommonRequest& request) {
  return {.stop = request.sampling.stop,
          .stop_token_ids = request.sampling.stop_token_ids,
          .min_tokens = request.sampling.min_tokens,
          .include_stop = request.include_stop,
          .skip_special_tokens = request.skip_special_tokens};
}

}  // namespace coppice
