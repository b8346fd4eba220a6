// Times on the device: medians of graph replays, and what the device itself can do.
#pragma once

#include <functional>

#include "backend/backend.h"
#include "backend/device_meter.h"
#include "io/json.h"

namespace coppice {

struct Spread {
  double median = 0, min = 0, max = 0;  // microseconds
};

Spread spread_of(std::vector<double> values);

// Times body in graphs of `calls` calls, body(0) .. body(calls - 1), replayed `replays` times; per
// call. Where the backend has no graphs the calls run one after the other.
Spread time_calls(Backend& backend, DeviceMeter& meter, std::int64_t calls, int replays,
                  const std::function<void(std::int64_t)>& body);

// Calls that make a replay long enough to time and let it rotate over all copies.
std::int64_t calls_for(double estimated_us, std::int64_t num_copies);

struct DeviceCeiling {
  double read_gb_per_s = 0;  // the best read-only stream
  double fixed_us = 0;       // of one launch that reads, beyond its bytes
  double node_us = 0;        // of one dependent launch that does nothing

  double floor_us(double bytes) const { return fixed_us + bytes / read_gb_per_s * 1e-3; }
};

DeviceCeiling measure_ceiling(Backend& backend, DeviceMeter& meter);

// The fields that both benchmarks write about the machine and the program.
Json describe_run(const Backend& backend, const DeviceMeter& meter, const DeviceCeiling& ceiling,
                  const std::string& schema, const std::string& command);

}  // namespace coppice
