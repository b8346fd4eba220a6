// Networks with random weights that are made on the device: nothing is uploaded, all memory is
// distinct, so that a step reads what a step of the real network reads.
#pragma once

#include <deque>
#include <memory>

#include "backend/device_meter.h"
#include "benchmark/kernel_case.h"
#include "model/dflash_model.h"
#include "model/model_options.h"

namespace coppice {

// `network`'s widths, with so many layers of which the first is dense.
ModelConfig model_config_of(const NetworkShape& network, std::int64_t num_layers);
// z-lab's drafter for Kimi K2.5 (6 layers, block 8), or one in proportion to the small network, as
// one of the ranks of `target` holds it.
DflashConfig drafter_config_of(const NetworkShape& network, std::int64_t num_ranks,
                               const ModelConfig& target);

// `config` has the widths of one rank. Where options.parallel has several, the networks are those
// of which it is a part: they sum and gather over ranks. All ranks get the same numbers.
std::unique_ptr<Model> make_random_target(Backend& backend, DeviceMeter& meter,
                                          const ModelConfig& config, const ModelOptions& options);
std::unique_ptr<DflashModel> make_random_drafter(Backend& backend, DeviceMeter& meter,
                                                 const DflashConfig& config, std::int64_t num_ranks,
                                                 Model& target, const ModelOptions& options);

}  // namespace coppice
