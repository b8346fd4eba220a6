#include "engine/request_limits.h"

#include "backend/op_args.h"
#include "base/error.h"

namespace coppice {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorKind::kInvalidArgument, message);
}

void check_tokens(const std::vector<std::int32_t>& token_ids, std::int64_t vocab_size) {
  if (token_ids.empty()) refuse("prompt_token_ids is empty: must hold at least one token");
  for (const std::int32_t token : token_ids)
    if (token < 0 || token >= vocab_size)
      refuse("prompt_token_ids holds " + std::to_string(token) + ": must be a token id from 0 to " +
             std::to_string(vocab_size - 1));
}

void check_length(const Request& request, const RequestLimits& limits) {
  const std::int64_t prompt = std::ssize(request.prompt_token_ids);
  const std::int64_t total = prompt + request.sampling.max_tokens;
  if (total > limits.max_model_len)
    refuse("prompt_token_ids (" + std::to_string(prompt) + " tokens) and max_tokens (" +
           std::to_string(request.sampling.max_tokens) + ") exceed max_model_len (" +
           std::to_string(limits.max_model_len) + ")");
  const std::int64_t blocks = (total + limits.reserve + kBlockSize - 1) / kBlockSize;
  if (blocks > limits.num_blocks)
    refuse("prompt_token_ids and max_tokens (" + std::to_string(total) + " tokens) need " +
           std::to_string(blocks) + " cache blocks: the cache holds " +
           std::to_string(limits.num_blocks));
}

}  // namespace

void check_request(const Request& request, const RequestLimits& limits) {
  request.sampling.validate(limits.vocab_size);
  check_tokens(request.prompt_token_ids, limits.vocab_size);
  check_length(request, limits);
  if (request.ddtree_budget && *request.ddtree_budget < kAutoBudget)
    refuse("ddtree_budget is " + std::to_string(*request.ddtree_budget) +
           ": must be at least 0, or -1 for auto");
}

std::int64_t effective_model_len(const EngineConfig& config, const ModelConfig& model) {
  if (config.max_model_len > model.max_position_embeddings)
    refuse("max_model_len is " + std::to_string(config.max_model_len) +
           ": the model's max_position_embeddings is " +
           std::to_string(model.max_position_embeddings));
  return config.max_model_len > 0 ? config.max_model_len : model.max_position_embeddings;
}

}  // namespace coppice
