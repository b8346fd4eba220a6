// What is known of a GPU before anything was measured on it, with the source of every number.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace coppice {

enum class LinkKind { kNvlink, kPcie, kInfinityFabric };
const char* name_of(LinkKind kind);

// Time of a sum over ranks of `bytes` on each, inside a captured graph:
//   one-shot (every rank sends everything to all): base[ranks] + (ranks - 1) bytes / one_shot_gb_s
//   two-shot (reduce-scatter, all-gather):  two_shot_base + 2 (ranks - 1) / ranks bytes / two_shot
// whichever is less.
struct AllReduceModel {
  double base_us_2 = 0, base_us_4 = 0, base_us_8 = 0;
  double one_shot_gb_s = 0;
  double two_shot_base_us = 0;
  double two_shot_gb_s = 0;
};
double all_reduce_us(const AllReduceModel& model, std::int64_t num_ranks, double bytes);

struct DeviceSpec {
  std::string_view name;      // as --gpu takes it
  std::string_view title;     // as people write it
  std::string_view arch;      // the target of its kernels
  bool can_run = false;       // Coppice has a build for it; false: comparison only
  double memory_gib = 0;      // as the driver reports it
  double bandwidth_tb_s = 0;  // data sheet
  double read_tb_s = 0;       // what one well-made read kernel reaches
  bool read_is_measured = false;
  double bf16_tflops = 0;   // dense, data sheet
  double bf16_reached = 0;  // what a large product reaches
  double fp8_tflops = 0, fp4_tflops = 0;
  std::int64_t num_sms = 0;
  double clock_ghz = 0;  // under load
  double l2_mb = 0;
  LinkKind link = LinkKind::kNvlink;
  double link_gb_s = 0;  // one direction
  AllReduceModel all_reduce;
  double launch_us = 1.0;  // of a dependent kernel in a graph, programmatic edges
  std::string_view source;
};

std::span<const DeviceSpec> device_specs();
// By name without regard to case, "-", "_" and spaces ("RTX PRO 6000" = "rtxpro6000"). Throws
// Error(kInvalidArgument) naming those that are known.
const DeviceSpec& find_device(const std::string& name);
// "h200,b200" or "all".
std::vector<DeviceSpec> find_devices(const std::string& names);

}  // namespace coppice
