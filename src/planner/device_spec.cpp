#include "planner/device_spec.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/error.h"

namespace coppice {
namespace {

// Small messages on eight H100s without graphs: 5.7 us at 4 KB, 7.8 at 32 KB, 16.7 at 256 KB, 22
// at 512 KB, 34 at 1 MB; four ranks 4.8, two 4.5 at 32 KB (SGLang pull request 2904).
constexpr AllReduceModel kNvlink4{.base_us_2 = 4.4,
                                  .base_us_4 = 4.6,
                                  .base_us_8 = 6.5,
                                  .one_shot_gb_s = 180,
                                  .two_shot_base_us = 10,
                                  .two_shot_gb_s = 75};
// The same protocol at two thirds of the link rate.
constexpr AllReduceModel kNvlink3{.base_us_2 = 5,
                                  .base_us_4 = 5.5,
                                  .base_us_8 = 7.5,
                                  .one_shot_gb_s = 120,
                                  .two_shot_base_us = 12,
                                  .two_shot_gb_s = 50};
// Fused all-reduce and norm on eight Blackwell GPUs: 4.8 us at 10 KB, 5.2 at 82 KB, 8.3 at 655 KB;
// four ranks 4.1 at 10 KB (FlashInfer pull request 5178).
constexpr AllReduceModel kNvlink5{.base_us_2 = 3.9,
                                  .base_us_4 = 4.1,
                                  .base_us_8 = 4.7,
                                  .one_shot_gb_s = 1250,
                                  .two_shot_base_us = 9,
                                  .two_shot_gb_s = 150};
// Eight cards on PCIe 5 with a one-shot exchange: 15 to 25 us up to 64 KB (not confirmed); NCCL
// takes 45 us at 4 KB.
constexpr AllReduceModel kPcie5{.base_us_2 = 10,
                                .base_us_4 = 12,
                                .base_us_8 = 16,
                                .one_shot_gb_s = 50,
                                .two_shot_base_us = 30,
                                .two_shot_gb_s = 25};
constexpr AllReduceModel kPcie4{.base_us_2 = 14,
                                .base_us_4 = 18,
                                .base_us_8 = 24,
                                .one_shot_gb_s = 25,
                                .two_shot_base_us = 40,
                                .two_shot_gb_s = 13};
constexpr AllReduceModel kFabric{.base_us_2 = 6,
                                 .base_us_4 = 7,
                                 .base_us_8 = 9,
                                 .one_shot_gb_s = 150,
                                 .two_shot_base_us = 14,
                                 .two_shot_gb_s = 60};

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
               .all_reduce = kNvlink3,
               .launch_us = 1.4,
               .source = "NVIDIA data sheet, from memory; read rate assumed"},
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
               .all_reduce = kNvlink4,
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
               .all_reduce = kNvlink4,
               .source = "memory, read rate, bf16 product, launch: measured on one H200; "
                         "all-reduce: SGLang pull request 2904 on H100"},
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
               .all_reduce = kNvlink5,
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
               .all_reduce = kNvlink5,
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
               .all_reduce = kNvlink5,
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
               .all_reduce = kNvlink5,
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
               .all_reduce = kPcie5,
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
               .all_reduce = kPcie5,
               .source = "NVIDIA data sheet, from memory; read rate and exchange assumed"},
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
               .all_reduce = kPcie4,
               .source = "NVIDIA data sheet, from memory; read rate of calm (zeux)"},
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
               .all_reduce = kFabric,
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
               .all_reduce = kFabric,
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

double all_reduce_us(const AllReduceModel& model, std::int64_t num_ranks, double bytes) {
  if (num_ranks <= 1) return 0;
  const auto ranks = static_cast<double>(num_ranks);
  const double base = num_ranks <= 2   ? model.base_us_2
                      : num_ranks <= 4 ? model.base_us_4
                                       : model.base_us_8;
  const double kb_to_us = 1e-3;  // bytes / (GB/s) in us
  const double one_shot = base + (ranks - 1) * bytes / model.one_shot_gb_s * kb_to_us;
  const double two_shot =
      model.two_shot_base_us + 2 * (ranks - 1) / ranks * bytes / model.two_shot_gb_s * kb_to_us;
  return std::min(one_shot, two_shot);
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
  throw Error(ErrorKind::kInvalidArgument, "--gpu: '" + name + "' is none of " + known);
}

std::vector<DeviceSpec> find_devices(const std::string& names) {
  if (plain(names) == "all") return {kDevices.begin(), kDevices.end()};
  std::vector<DeviceSpec> devices;
  std::size_t begin = 0;
  while (begin <= names.size()) {
    const std::size_t end = std::min(names.find(',', begin), names.size());
    devices.push_back(find_device(names.substr(begin, end - begin)));
    begin = end + 1;
  }
  return devices;
}

}  // namespace coppice
