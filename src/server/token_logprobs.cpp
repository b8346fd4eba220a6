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

Json prompt_logprobs_json(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids,
                          const std::vector<TokenLogprob>& logprobs) {
  Json list = Json::array({Json()});
  for (std::size_t i = 0; i < logprobs.size(); ++i) {
    Json ranked = Json::object();
    const auto put = [&](std::int32_t id, float logprob, Json rank) {
      ranked[std::to_string(id)] = Json::object({{"logprob", finite(logprob)},
                                                 {"rank", std::move(rank)},
                                                 {"decoded_token", tokenizer.token_bytes(id)}});
    };
    const auto& top = logprobs[i].top;
    for (std::size_t rank = 0; rank < top.size(); ++rank)
      put(top[rank].first, top[rank].second, static_cast<std::int64_t>(rank) + 1);
    const std::int32_t own = ids[i + 1];
    if (ranked.find(std::to_string(own)) == nullptr) put(own, logprobs[i].logprob, Json());
    list.push_back(std::move(ranked));
  }
  return list;
}

Json CompletionLogprobs::Lists::object() && {
  return Json::object({{"text_offset", std::move(offsets)},
                       {"token_logprobs", std::move(values)},
                       {"tokens", std::move(tokens)},
                       {"top_logprobs", std::move(tops)}});
}

// Without log-probability: the first token of a prompt.
void CompletionLogprobs::add_token(std::int32_t id, const TokenLogprob* logprob, Lists& lists) {
  const std::string token = logprob_token(*tokenizer_, id, as_ids_);
  lists.tokens.push_back(token);
  lists.offsets.push_back(offset_);
  offset_ += count_characters(tokenizer_->token_bytes(id));
  lists.values.push_back(logprob != nullptr ? Json(finite(logprob->logprob)) : Json());
  Json top;
  if (logprob != nullptr) {
    top = Json::object();
    for (const auto& [other, value] : logprob->top) {
      const std::string name = logprob_token(*tokenizer_, other, as_ids_);
      if (top.find(name) == nullptr) top[name] = finite(value);  // texts of bytes may collide
    }
    if (top.find(token) == nullptr) top[token] = finite(logprob->logprob);
  }
  lists.tops.push_back(std::move(top));
}

Json CompletionLogprobs::add_prompt(const std::vector<std::int32_t>& ids,
                                    const std::vector<TokenLogprob>& logprobs) {
  Lists lists;
  for (std::size_t i = 0; i < ids.size(); ++i)
    add_token(ids[i], i == 0 || i > logprobs.size() ? nullptr : &logprobs[i - 1], lists);
  return std::move(lists).object();
}

Json CompletionLogprobs::add(const std::vector<std::int32_t>& ids,
                             const std::vector<TokenLogprob>& logprobs) {
  Lists lists;
  for (std::size_t i = 0; i < logprobs.size(); ++i) add_token(ids[i], &logprobs[i], lists);
  return std::move(lists).object();
}

}  // namespace coppice
