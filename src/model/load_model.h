// From a path to a network that can run.
#pragma once

#include <memory>
#include <string>

#include "io/checkpoint.h"
#include "model/dflash_model.h"
#include "model/model.h"
#include "model/model_options.h"
#include "model/weights.h"

namespace coppice {

// `path`: a folder with config.json and safetensors, or a GGUF file. `progress` counts bytes.
// Everything is checked before memory is allocated on the device. Throws Error, one line naming
// the file and the cause. `backend` must outlive the model.
std::unique_ptr<Model> load_model(Backend& backend, const std::string& path,
                                  const ModelOptions& options,
                                  const ProgressCallback& progress = {});

// What load_model checks before it allocates, for a network or a DFlash drafter, from config.json
// and headers alone. Throws the same Error. Returns the bytes of all weights as they are stored.
std::int64_t check_loadable(const std::string& path);

// Throws Error(kBadFile) naming `file` where the drafter was made for another target.
void check_fits_target(const std::string& file, const DflashConfig& drafter,
                       const ModelConfig& target);

// A DFlash drafter for `target`, which must outlive it. Throws when the two do not belong together.
// Sets the target's feature layers.
std::unique_ptr<DflashModel> load_dflash_model(Backend& backend, const std::string& dir,
                                               Model& target, const ModelOptions& options,
                                               const ProgressCallback& progress = {});

std::unique_ptr<DflashModel> make_dflash_model(Backend& backend, const DflashConfig& config,
                                               DflashWeights weights, Model& target,
                                               const ModelOptions& options);

// Networks with weights drawn from `seed`, the same on every machine: for tests and benchmarks of
// shapes whose checkpoints are not at hand. Experts are INT4, everything else is BF16.
std::unique_ptr<Model> make_random_model(Backend& backend, const ModelConfig& config,
                                         std::uint64_t seed, const ModelOptions& options);
std::unique_ptr<DflashModel> make_random_dflash_model(Backend& backend, const DflashConfig& config,
                                                      std::uint64_t seed, Model& target,
                                                      const ModelOptions& options);

// Kimi K2.6's layers, in any number and with any number of experts. With num_ranks, the widths that
// one of so many tensor-parallel ranks holds: the same kernels at the same shapes, without
// reduction.
ModelConfig kimi_k2_config(std::int64_t num_hidden_layers, std::int64_t n_routed_experts,
                           std::int64_t num_ranks = 1);

}  // namespace coppice
