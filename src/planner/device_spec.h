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

// A sum over ranks inside a captured graph, in the form that kernels/comm/peer_sum_form.h chooses:
//   launch_us + trips x hop_us + sent / sent_gb_s
// One trip where every word travels tagged (all of it to every peer, twice the bytes), two where a
// flag follows the data (all of it to every peer), four in two shots (a share to every peer,
// twice).
struct PeerSumModel {
  double launch_us = 0;
  double hop_us = 0;                // until a write is seen by a peer
  double sent_gb_s = 0;             // that the kernels of one rank reach, to all peers together
  std::int64_t measured_ranks = 0;  // on a group so large; 0: all of it is assumed
};
double peer_sum_us(const PeerSumModel& model, std::int64_t num_ranks, double bytes);

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
  PeerSumModel peer_sum;
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
