// What `coppice top` shows: a page of text out of two readings of /metrics.
#pragma once

#include <string>

#include "client/metrics_snapshot.h"

namespace coppice {

// Rates and percentiles are of the time between the readings. `url` is the heading.
std::string top_view(const std::string& url, const MetricsSnapshot& before,
                     const MetricsSnapshot& now, double seconds);

}  // namespace coppice
