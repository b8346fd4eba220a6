// A target network from a configuration and the source of its weights.
#pragma once

#include <memory>

#include "io/checkpoint.h"
#include "model/model.h"
#include "model/model_options.h"
#include "model/weight_source.h"

namespace coppice {

// The source is no longer needed at return.
std::unique_ptr<Model> build_model(Backend& backend, const ModelConfig& config,
                                   WeightSource& source, const ModelOptions& options,
                                   const ProgressCallback& progress);

}  // namespace coppice
