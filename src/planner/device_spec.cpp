#include "planner/device_spec.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/error.h"
#include "kernels/comm/peer_sum_form.h"

namespace coppice {
namespace {

// Two H200s of one host, rows of 7168 (docs/results/2026-11-30-h200-tensor-parallel.md): within 7 %
// of the tagged sums, 14 % of one shot, 10 % of two. More ranks are predicted: as far, and all of
// what a rank sends leaves at the same rate.
constexpr PeerSumModel kTwoH200{
    .launch_us = 1.05, .hop_us = 1.55, .sent_gb_s = 250, .measured_ranks = 2};
constexpr PeerSumModel kNvlink4{.launch_us = 1.05, .hop_us = 1.55, .sent_gb_s = 250};
// Assumed as far, at the links' rates. For comparison, another engine's sums on NVLink 5: 4.8 us at
// 10 KB on eight GPUs, 8.3 at 655 KB (FlashInfer pull request 5178).
constexpr PeerSumModel kNvlink3{.launch_us = 1.5, .hop_us = 1.8, .sent_gb_s = 167};
constexpr PeerSumModel kNvlink5{.launch_us = 1.05, .hop_us = 1.55, .sent_gb_s = 500};
// Assumed: writes through a host bridge. Exchanges of eight cards on PCIe 5 are said to take 15 to
// 25 us up to 64 KB; NCCL takes 45 us at 4 KB.
constexpr PeerSumModel kPcie5{.launch_us = 1.05, .hop_us = 5, .sent_gb_s = 40};
constexpr PeerSumModel kPcie4{.launch_us = 1.05, .hop_us = 7, .sent_gb_s = 20};
constexpr PeerSumModel kFabric{.launch_us = 2, .hop_us = 2.5, .sent_gb_s = 200};

constexpr std::string_view kAudited =
    "SemiAnalysis gpu-specs.ts (bandwidth, FLOP/s, links); read rate assumed";

// Read rates not measured here: 0.90 of the data sheet on Hopper and Ampere, 0.95 of the 7.67 TB/s
// that the driver's bus width gives on Blackwell, 0.90 on GDDR.
constexpr std::array kDevices{
    DeviceSpec{.name = "a100",
               .title = "A100 SXM 80 GB",
               .arch = "sm_80",
               .can_run = true,
               .memory_gib = 79.2,
               .bandwidth_tb_s = 2.04,
               .read_tb_s = 1.83,
               .bf16_tflops = 312,
               .bf16_reached = 250,
               .num_sms = 108,
               .clock_ghz = 1.41,
               .l2_mb = 40,
               .link = LinkKind::kNvlink,
               .link_gb_s = 300,
               .peer_sum = kNvlink3,
               .launch_us = 1.4,
               .source = "NVIDIA A100 data sheet 1758950-r4; read rate assumed"},
    DeviceSpec{.name = "h100",
               .title = "H100 SXM 80 GB",
               .arch = "sm_90a",
               .can_run = true,
               .memory_gib = 79.6,
               .bandwidth_tb_s = 3.35,
               .read_tb_s = 3.02,
               .bf16_tflops = 989,
               .bf16_reached = 790,
               .fp8_tflops = 1979,
               .num_sms = 132,
               .clock_ghz = 1.755,
               .l2_mb = 50,
               .link = LinkKind::kNvlink,
               .link_gb_s = 450,
               .peer_sum = kNvlink4,
               .source = kAudited},
    DeviceSpec{.name = "h200",
               .title = "H200 SXM",
               .arch = "sm_90a",
               .can_run = true,
               .memory_gib = 139.8,
               .bandwidth_tb_s = 4.8,
               .read_tb_s = 4.61,
               .read_is_measured = true,
               .bf16_tflops = 989,
               .bf16_reached = 793,
               .fp8_tflops = 1979,
               .num_sms = 132,
               .clock_ghz = 1.98,
               .l2_mb = 60,
               .link = LinkKind::kNvlink,
               .link_gb_s = 450,
               .peer_sum = kTwoH200,
               .source = "memory, read rate, bf16 product, launch: measured on one H200; "
                         "sums over ranks: on two"},
    DeviceSpec{.name = "b200",
               .title = "B200 SXM",
               .arch = "sm_100a",
               .can_run = true,
               .memory_gib = 179,
               .bandwidth_tb_s = 8.0,
               .read_tb_s = 7.29,
               .bf16_tflops = 2250,
               .bf16_reached = 1690,
               .fp8_tflops = 4500,
               .fp4_tflops = 9000,
               .num_sms = 148,
               .clock_ghz = 1.85,
               .l2_mb = 126.5,
               .link = LinkKind::kNvlink,
               .link_gb_s = 900,
               .peer_sum = kNvlink5,
               .source = kAudited},
    DeviceSpec{.name = "b300",
               .title = "B300 SXM",
               .arch = "sm_103a",
               .can_run = true,
               .memory_gib = 268,
               .bandwidth_tb_s = 8.0,
               .read_tb_s = 7.29,
               .bf16_tflops = 2250,
               .bf16_reached = 1690,
               .fp8_tflops = 4500,
               .fp4_tflops = 13500,
               .num_sms = 148,
               .clock_ghz = 1.92,
               .l2_mb = 126,
               .link = LinkKind::kNvlink,
               .link_gb_s = 900,
               .peer_sum = kNvlink5,
               .source = kAudited},
    DeviceSpec{.name = "gb200",
               .title = "GB200 NVL72",
               .arch = "sm_100a",
               .can_run = true,
               .memory_gib = 185,
               .bandwidth_tb_s = 8.0,
               .read_tb_s = 7.29,
               .bf16_tflops = 2500,
               .bf16_reached = 1875,
               .fp8_tflops = 5000,
               .fp4_tflops = 10000,
               .num_sms = 152,
               .clock_ghz = 1.92,
               .l2_mb = 126,
               .link = LinkKind::kNvlink,
               .link_gb_s = 900,
               .peer_sum = kNvlink5,
               .source = kAudited},
    DeviceSpec{.name = "gb300",
               .title = "GB300 NVL72",
               .arch = "sm_103a",
               .can_run = true,
               .memory_gib = 277,
               .bandwidth_tb_s = 8.0,
               .read_tb_s = 7.29,
               .bf16_tflops = 2500,
               .bf16_reached = 1875,
               .fp8_tflops = 5000,
               .fp4_tflops = 15000,
               .num_sms = 152,
               .clock_ghz = 1.92,
               .l2_mb = 126,
               .link = LinkKind::kNvlink,
               .link_gb_s = 900,
               .peer_sum = kNvlink5,
               .source = kAudited},
    DeviceSpec{.name = "rtxpro6000",
               .title = "RTX PRO 6000 Blackwell",
               .arch = "sm_120a",
               .can_run = true,
               .memory_gib = 95.6,
               .bandwidth_tb_s = 1.79,
               .read_tb_s = 1.61,
               .bf16_tflops = 504,
               .bf16_reached = 400,
               .fp8_tflops = 1010,
               .fp4_tflops = 2020,
               .num_sms = 188,
               .clock_ghz = 2.4,
               .l2_mb = 128,
               .link = LinkKind::kPcie,
               .link_gb_s = 64,
               .peer_sum = kPcie5,
               .source = "hardware-corner.net, hmc-tech.com; read rate and exchange assumed"},
    DeviceSpec{.name = "rtx5090",
               .title = "RTX 5090",
               .arch = "sm_120a",
               .can_run = true,
               .memory_gib = 31.8,
               .bandwidth_tb_s = 1.79,
               .read_tb_s = 1.61,
               .bf16_tflops = 210,
               .bf16_reached = 180,
               .fp8_tflops = 419,
               .fp4_tflops = 1676,
               .num_sms = 170,
               .clock_ghz = 2.4,
               .l2_mb = 96,
               .link = LinkKind::kPcie,
               .link_gb_s = 64,
               .peer_sum = kPcie5,
               .source = "spheron.network, techpowerup.com (bf16: a quarter of 838 sparse "
                         "TFLOP/s); read rate and exchange assumed"},
    DeviceSpec{.name = "rtx4090",
               .title = "RTX 4090",
               .arch = "sm_89",
               .can_run = true,
               .memory_gib = 24.0,
               .bandwidth_tb_s = 1.008,
               .read_tb_s = 0.955,
               .bf16_tflops = 165,
               .bf16_reached = 140,
               .fp8_tflops = 330,
               .num_sms = 128,
               .clock_ghz = 2.5,
               .l2_mb = 72,
               .link = LinkKind::kPcie,
               .link_gb_s = 32,
               .peer_sum = kPcie4,
               .source = "hmc-tech.com; read rate of calm (zeux), exchange assumed"},
    DeviceSpec{.name = "mi300x",
               .title = "MI300X",
               .arch = "gfx942",
               .memory_gib = 191.5,
               .bandwidth_tb_s = 5.3,
               .read_tb_s = 4.3,
               .bf16_tflops = 1307,
               .bf16_reached = 700,
               .fp8_tflops = 2615,
               .num_sms = 304,
               .clock_ghz = 2.1,
               .l2_mb = 256,
               .link = LinkKind::kInfinityFabric,
               .link_gb_s = 448,
               .peer_sum = kFabric,
               .launch_us = 2.0,
               .source = kAudited},
    DeviceSpec{.name = "mi355x",
               .title = "MI355X",
               .arch = "gfx950",
               .memory_gib = 287,
               .bandwidth_tb_s = 8.0,
               .read_tb_s = 6.6,
               .bf16_tflops = 2516,
               .bf16_reached = 1500,
               .fp8_tflops = 5033,
               .fp4_tflops = 10066,
               .num_sms = 256,
               .clock_ghz = 2.4,
               .l2_mb = 256,
               .link = LinkKind::kInfinityFabric,
               .link_gb_s = 538,
               .peer_sum = kFabric,
               .launch_us = 2.0,
               .source = kAudited},
};

std::string plain(std::string_view name) {
  std::string result;
  for (const char c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

}  // namespace

const char* name_of(LinkKind kind) {
  switch (kind) {
    case LinkKind::kNvlink:
      return "NVLink";
    case LinkKind::kPcie:
      return "PCIe";
    case LinkKind::kInfinityFabric:
      return "Infinity Fabric";
  }
  return "?";
}

double peer_sum_us(const PeerSumModel& model, std::int64_t num_ranks, double bytes) {
  if (num_ranks <= 1) return 0;
  constexpr double kUsOfKb = 1e-3;  // bytes / (GB/s) in us
  const double peers = static_cast<double>(num_ranks - 1);
  double trips = 1, sent = 2 * peers * bytes;
  switch (
      kernels::choose_peer_sum(static_cast<int>(num_ranks), static_cast<std::int64_t>(bytes) / 2)) {
    case kernels::PeerSumForm::kTagged:
      break;
    case kernels::PeerSumForm::kOneShot:
      trips = 2, sent = peers * bytes;
      break;
    case kernels::PeerSumForm::kTwoShot:
      trips = 4, sent = 2 * peers / static_cast<double>(num_ranks) * bytes;
      break;
  }
  return model.launch_us + trips * model.hop_us + sent / model.sent_gb_s * kUsOfKb;
}

std::span<const DeviceSpec> device_specs() {
  return kDevices;
}

const DeviceSpec& find_device(const std::string& name) {
  std::string known;
  for (const DeviceSpec& device : kDevices) {
    if (plain(device.name) == plain(name) || plain(device.title) == plain(name)) return device;
    known += (known.empty() ? "" : ", ") + std::string(device.name);
  }
  throw Error(ErrorKind::kInvalidArgument,
              "--gpu: '" + name + "' is none of " + known + ", nor all");
}

std::vector<DeviceSpec> find_devices(const std::string& names) {
  if (plain(names) == "all") return {kDevices.begin(), kDevices.end()};
  std::vector<DeviceSpec> devices;
  std::size_t begin = 0;
  while (begin <= names.size()) {
    const std::size_t end = std::min(names.find(',', begin), names.size());
    const DeviceSpec& found = find_device(names.substr(begin, end - begin));
    const auto is_found = [&](const DeviceSpec& device) { return device.name == found.name; };
    if (std::ranges::none_of(devices, is_found)) devices.push_back(found);
    begin = end + 1;
  }
  return devices;
}

}  // namespace coppice
