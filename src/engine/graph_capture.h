// Captures the rounds that decoding will launch before the first request comes, so that no request
// waits for a capture.
#pragma once

#include <vector>

#include "engine/engine_config.h"
#include "engine/runner_group.h"

namespace coppice {

// Every (sequences, rows, sampling) a configuration launches: plain rounds, and rounds that draft
// with the configured budget or, for auto, with as many rows as the cut may choose.
std::vector<RoundShape> shapes_to_capture(const ModelRunner& runner, const EngineConfig& config,
                                          bool custom_drafter);

// Runs each once with every place empty. Logs their number, time and device memory. Only where
// rounds are captured: on a GPU, without enforce_eager.
void capture_rounds(RunnerGroup& runner, const std::vector<RoundShape>& shapes, const Clock& clock);

}  // namespace coppice
