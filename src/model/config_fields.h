// Pieces shared by the readers of target and drafter configurations.
#pragma once

#include <string>

#include "io/json_field.h"
#include "model/model_config.h"

namespace coppice {

// An integer in [1, most]: sizes beyond it are damage, and sums of products of them fit 64 bits.
std::int64_t read_size(const JsonField& config, const char* key, std::int64_t most = 1 << 24);
// The same with a value for an absent or null field.
std::int64_t read_size_or(const JsonField& config, const char* key, std::int64_t otherwise,
                          std::int64_t most = 1 << 24);

// Throws Error(kUnsupported) "FILE: field 'a.b': cause".
[[noreturn]] void fail_unsupported(const JsonField& field, const std::string& cause);
// Throws as above unless the field is absent, null, or equal to `supported`.
template <typename T>
void require_equal(const JsonField& config, const char* key, const T& supported) {
  const auto field = config.find(key);
  if (!field || field->template as<T>() == supported) return;
  fail_unsupported(*field, write_json(field->value()) + " is not supported, only " +
                               write_json(Json(supported)));
}

// `rope_theta` + `rope_scaling`, or `rope_parameters` (transformers 5).
RopeConfig read_rope(const JsonField& config, std::int64_t max_position_embeddings);

// The fields of Llama and Qwen3 networks that a drafter shares.
void read_gqa_network(const JsonField& config, ModelConfig& model);

// Upper limits of counts that are no widths. Those of experts are what every backend can route.
inline constexpr std::int64_t kMaxLayers = 4096;
inline constexpr std::int64_t kMaxHeads = 4096;
inline constexpr std::int64_t kMaxExperts = 1024;
inline constexpr std::int64_t kMaxExpertsPerToken = 64;
inline constexpr std::int64_t kMaxEosTokenIds = 16;
inline constexpr std::int64_t kMaxDraftBlock = 32;

}  // namespace coppice
