#include "server/token_logprobs.h"

#include <algorithm>

namespace coppice {
namespace {

// JSON has no infinity; vLLM's floor.
double finite(float logprob) {
  return std::max(static_cast<double>(logprob), -9999.0);
}

std::int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

Json entry(const Tokenizer& tokenizer, std::int32_t id, float logprob, bool as_id) {
  Json bytes = Json::array();
  for (const char c : tokenizer.token_bytes(id))
    bytes.push_back(static_cast<int>(static_cast<unsigned char>(c)));
  return Json::object({{"token", logprob_token(tokenizer, id, as_id)},
                       {"logprob", finite(logprob)},
                       {"bytes", std::move(bytes)}});
}

}  // namespace

std::string logprob_token(const Tokenizer& tokenizer, std::int32_t id, bool as_id) {
  return as_id ? "token_id:" + std::to_string(id) : std::string(tokenizer.token_bytes(id));
}

Json chat_logprobs(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids,
                   const std::vector<TokenLogprob>& logprobs, bool as_ids) {
  Json content = Json::array();
  for (std::size_t i = 0; i < logprobs.size(); ++i) {
    Json token = entry(tokenizer, ids[i], logprobs[i].logprob, as_ids);
    Json top = Json::array();
    for (const auto& [id, logprob] : logprobs[i].top)
      top.push_back(entry(tokenizer, id, logprob, as_ids));
    token["top_logprobs"] = std::move(top);
    content.push_back(std::move(token));
  }
  return Json::object({{"content", std::move(content)}});
}

Json CompletionLogprobs::add(const std::vector<std::int32_t>& ids,
                             const std::vector<TokenLogprob>& logprobs) {
  Json tokens = Json::array(), values = Json::array(), tops = Json::array(),
       offsets = Json::array();
  for (std::size_t i = 0; i < logprobs.size(); ++i) {
    const std::string token = logprob_token(*tokenizer_, ids[i], as_ids_);
    tokens.push_back(token);
    values.push_back(finite(logprobs[i].logprob));
    offsets.push_back(offset_);
    offset_ += count_characters(tokenizer_->token_bytes(ids[i]));
    Json top = Json::object();
    for (const auto& [id, logprob] : logprobs[i].top) {
      const std::string name = logprob_token(*tokenizer_, id, as_ids_);
      if (top.find(name) == nullptr) top[name] = finite(logprob);  // texts of bytes may collide
    }
    if (top.find(token) == nullptr) top[token] = finite(logprobs[i].logprob);
    tops.push_back(std::move(top));
  }
  return Json::object({{"text_offset", std::move(offsets)},
                       {"token_logprobs", std::move(values)},
                       {"tokens", std::move(tokens)},
                       {"top_logprobs", std::move(tops)}});
}

}  // namespace coppice
