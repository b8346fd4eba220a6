// coppice bench kernels: every kernel over its shapes. docs/bench.md says how a time is taken and
// what the JSON holds.
#pragma once

#include <functional>
#include <string>

#include "benchmark/kernel_case.h"
#include "benchmark/peers.h"
#include "benchmark/timing.h"

namespace coppice {

struct KernelBenchOptions {
  std::string filter;       // only cases whose key contains one of these, separated by commas
  Json peers;               // of read_peers; null: none
  std::string command;      // for the report
  bool check_only = false;  // nothing is timed
};

// A file that bench/peers wrote. Throws Error naming it where it is something else.
Json read_peers(const std::string& path);

// One finished case.
struct KernelResult {
  KernelCase what;
  Spread us;
  double bytes = 0, flops = 0, first_bytes = 0, error = 0;
  bool wrong = false;    // not timed
  double target_us = 0;  // 0: none for this device
  double floor_us = 0;   // the reachable floor
  PeerTime peer = {};    // the fastest one of the same key
};

struct KernelReport {
  Json head;  // about the run
  DeviceCeiling ceiling;
  double tensor_tflops = 0;  // 0: unknown
  std::vector<KernelResult> results;

  bool all_right() const;
  Json as_json() const;
};

// Called before and after each case.
struct KernelBenchObserver {
  std::function<void(std::size_t done, std::size_t total, const std::string& key)> begin;
  std::function<void(const KernelReport&)> end;  // the last result is the case's
};

// `meter` is that of the device behind `backend`. Throws Error for a filter that matches nothing.
KernelReport run_kernel_bench(Backend& backend, DeviceMeter& meter,
                              const KernelBenchOptions& options,
                              const KernelBenchObserver& observer);

// The table: its head, and a line a result.
std::string table_head(const DeviceCeiling& ceiling);
std::string table_line(const KernelResult& result, const DeviceCeiling& ceiling);

}  // namespace coppice
