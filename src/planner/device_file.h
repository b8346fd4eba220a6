// The GPU that a benchmark's JSON was measured on.
#pragma once

#include "io/json_field.h"
#include "planner/device_spec.h"

namespace coppice {

// The table's entry with the file's read rate and product rate. Throws Error naming the file.
DeviceSpec measured_device(const JsonField& root);

}  // namespace coppice
