#include "model/parallel_config.h"

#include "base/check.h"
#include "base/error.h"

namespace coppice {
namespace {

constexpr std::int64_t kQuantizationGroup = 32;

}  // namespace

Shard shard_of(const ParallelConfig& parallel, std::int64_t total, std::int64_t multiple,
               const char* field) {
  COPPICE_CHECK(parallel.rank >= 0 && parallel.rank < parallel.size, parallel.rank, " of ",
                parallel.size);
  const std::int64_t count = total / parallel.size;
  if (parallel.size > 1 && (total % parallel.size != 0 || count % multiple != 0)) {
    std::string cause = "tensor parallel size " + std::to_string(parallel.size) +
                        " does not split " + field + " " + std::to_string(total);
    if (multiple > 1) cause += " into multiples of " + std::to_string(multiple);
    throw Error(ErrorKind::kUnsupported, cause);
  }
  return {.begin = parallel.rank * count, .count = count};
}

void check_parallel(const ModelConfig& config, const ParallelConfig& parallel) {
  shard_of(parallel, config.num_attention_heads, 1, "num_attention_heads");
  if (config.architecture == Architecture::kLlama)
    shard_of(parallel, config.num_key_value_heads, 1, "num_key_value_heads");
  shard_of(parallel, config.intermediate_size, 1, "intermediate_size");
  shard_of(parallel, config.vocab_size, 1, "vocab_size");
  if (config.n_routed_experts == 0) return;
  shard_of(parallel, config.moe_intermediate_size, kQuantizationGroup, "moe_intermediate_size");
}

}  // namespace coppice
