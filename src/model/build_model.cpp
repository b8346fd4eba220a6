#include "model/build_model.h"

#include "model/deepseek_model.h"
#include "model/llama_model.h"
#include "model/weight_loader.h"

namespace coppice {

std::unique_ptr<Model> build_model(Backend& backend, const ModelConfig& config,
                                   WeightSource& source, const ModelOptions& options,
                                   const ProgressCallback& progress) {
  if (config.architecture == Architecture::kDeepseek)
    return std::make_unique<DeepseekModel>(
        backend, config, load_deepseek_weights(backend, source, config, options.parallel, progress),
        options);
  return std::make_unique<LlamaModel>(
      backend, config, load_llama_weights(backend, source, config, options.parallel, progress),
      options);
}

}  // namespace coppice
