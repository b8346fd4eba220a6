// From tensors under their published names to a backend's layout: checks, slices for this rank, and
// regrouping for the absorbed form of MLA.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "io/checkpoint.h"
#include "model/host_matrix.h"
#include "model/parallel_config.h"
#include "model/weight_reader.h"
#include "model/weight_source.h"
#include "model/weights.h"

namespace coppice {

// Every tensor of a network, in loading order.
std::vector<WeightSpec> list_weights(const ModelConfig& config);
std::vector<WeightSpec> list_weights(const DflashConfig& config);

// gate, up and down of every routed expert of the layer under `prefix`, each asked of `matrix`.
std::vector<ExpertSource> expert_sources(
    const std::string& prefix, const ModelConfig& config,
    const std::function<HostMatrix(const WeightSpec& spec, Split split)>& matrix);
// "model.layers.3.mlp.experts."
std::string expert_prefix(std::int64_t layer);

// Checks headers of all tensors first, so that nothing is allocated for a checkpoint that lacks
// one. `progress` counts bytes of whole tensors. The sources' matrices may be released at return.
DeepseekWeights load_deepseek_weights(Backend& backend, WeightSource& source,
                                      const ModelConfig& config, const ParallelConfig& parallel,
                                      const ProgressCallback& progress);
LlamaWeights load_llama_weights(Backend& backend, WeightSource& source, const ModelConfig& config,
                                const ParallelConfig& parallel, const ProgressCallback& progress);
DflashWeights load_dflash_weights(Backend& backend, WeightSource& source,
                                  const DflashConfig& config, const ParallelConfig& parallel,
                                  const ProgressCallback& progress);

}  // namespace coppice
