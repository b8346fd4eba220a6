// Reads what `coppice bench kernels --json` writes.
#include <algorithm>

#include "base/error.h"
#include "io/json_field.h"
#include "model/config_fields.h"
#include "planner/device_file.h"
#include "planner/kernel_times.h"
#include "planner/measured_field.h"

namespace coppice {
namespace {

// Commits are timed as a pair; each half takes its share.
constexpr double kAcceptShare = 0.5;

using Kernels = std::vector<MeasuredKernel>;

// Rows and cached positions, of one sequence, that a benchmark may have.
constexpr std::int64_t kMostRows = 1 << 16, kMostContext = 1 << 24;

void add_attention(const JsonField& shape, double us, Kernels& kernels) {
  const std::int64_t batch = read_size(shape, "batch", kMostRows);
  // Kimi K2's and tiny-k2's caches: [latent | rotated key].
  const bool tiny = shape.get<std::string>("network", "") == "tiny";
  kernels.push_back({.op = "mla_attention",
                     .rows = batch * read_size(shape, "tree", kMostRows / batch),
                     .outputs = tiny ? 128 : 512,
                     .inputs = tiny ? 160 : 576,
                     .heads = read_size(shape, "num_heads", kMaxHeads),
                     .sequences = batch,
                     .context = read_size(shape, "context", kMostContext),
                     .us = us});
}

// An op of backend.h, or a pair of them; blocks of many ops are left out.
void add_case(const std::string& kernel, const JsonField& shape, double us, Kernels& kernels) {
  const auto size = [&](const char* key) { return read_size(shape, key); };
  const auto rows = [&] { return read_size(shape, "rows", kMostRows); };
  if (kernel == "moe_experts") {
    const std::int64_t experts = read_size(shape, "experts", kMaxExperts);
    kernels.push_back({.op = kernel,
                       .rows = rows(),
                       .outputs = size("intermediate_size"),
                       .inputs = size("hidden_size"),
                       .num_experts = experts,
                       .top_k = read_size(shape, "top_k", std::min(experts, kMaxExpertsPerToken)),
                       .us = us});
  }
  if (kernel == "linear" || kernel == "head_linear") {
    const std::int64_t heads = read_size_or(shape, "num_heads", 1, kMaxHeads);
    kernels.push_back({.op = kernel,
                       .rows = rows(),
                       .outputs = size("outputs") * heads,
                       .inputs = size("inputs"),
                       .heads = heads,
                       .us = us});
  }
  if (kernel == "mla_attention") add_attention(shape, us, kernels);
  if (kernel == "top_k_log_probs" || kernel == "sample_rows")
    kernels.push_back({.op = kernel,
                       .rows = rows(),
                       .outputs = kernel == "sample_rows" ? 0 : 64,
                       .inputs = size("vocab_size"),
                       .us = us});
  if (kernel == "build_tree" || kernel == "build_tree + compile_tree") {
    const std::int64_t budget = read_size(shape, "budget", kMostRows);
    const std::int64_t batch = read_size(shape, "batch", kMostRows);
    if (kernel == "build_tree") {
      kernels.push_back({.op = kernel, .rows = budget, .sequences = batch, .us = us});
      return;
    }
    // Of the pair, what building alone does not take.
    for (const MeasuredKernel& build : kernels)
      if (build.op == "build_tree" && build.rows == budget && build.sequences == batch)
        us -= build.us;
    if (us <= 0) return;  // less than what they differ by
    kernels.push_back({.op = "compile_tree", .rows = budget, .sequences = batch, .us = us});
  }
  if (kernel == "accept_path + move_kv")
    for (const bool accept : {true, false})
      kernels.push_back({.op = accept ? "accept_path" : "move_kv",
                         .rows = read_size(shape, "batch", kMostRows),
                         .sequences = read_size(shape, "batch", kMostRows),
                         .us = us * (accept ? kAcceptShare : 1 - kAcceptShare)});
  constexpr const char* kRowOps[] = {"embed",      "rms_norm",  "add_rms_norm",
                                     "silu_mul",   "moe_route", "mla_rope_and_write_kv",
                                     "gather_rows"};
  if (std::ranges::find(kRowOps, kernel) != std::end(kRowOps))
    kernels.push_back({.op = kernel, .rows = rows(), .us = us});
}

}  // namespace

DeviceSpec measured_device(const JsonField& root) {
  const auto name = root.at("device").get<std::string>("name");
  const DeviceSpec* found = nullptr;
  for (const DeviceSpec& device : device_specs()) {
    const std::string_view first = device.title.substr(0, device.title.find(' '));
    const bool is_rtx = first == "RTX";
    if (name.find(is_rtx ? device.title : first) != std::string::npos) found = &device;
  }
  if (found == nullptr)
    root.at("device").at("name").fail("'" + name + "' is not in the table of GPUs");
  DeviceSpec device = *found;
  constexpr double kMostRate = 1e6;  // GB/s, TFLOP/s
  device.read_tb_s = read_between(root.at("read_gb_per_s"), 1, kMostRate) / 1000;
  device.read_is_measured = true;
  if (const auto tflops = root.find("tensor_tflops"))
    device.bf16_reached = read_between(*tflops, 1, kMostRate);
  return device;
}

KernelTimes KernelTimes::from_file(const std::string& path) {
  const Json document = read_json_file(path);
  const JsonField root(document, path);
  if (root.get<std::string>("schema") != "coppice-bench-kernels-1")
    root.at("schema").fail("is not coppice-bench-kernels-1 (coppice bench kernels --json)");
  Kernels kernels;
  for (const JsonField& entry : root.at("cases").elements()) {
    const auto us = entry.find("us");
    if (!us || entry.get<bool>("wrong", false)) continue;
    // Sampling with filters is another kernel than the greedy choice that plans assume.
    if (entry.get<std::string>("key").starts_with("sample ")) continue;
    add_case(entry.get<std::string>("kernel"), entry.at("shape"), read_us(*us), kernels);
  }
  if (kernels.empty()) root.at("cases").fail("holds no kernel that was timed");
  return {std::move(kernels), measured_device(root), path};
}

}  // namespace coppice
