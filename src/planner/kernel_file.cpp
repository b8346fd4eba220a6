// Reads what `coppice bench kernels --json` writes.
#include <algorithm>

#include "base/error.h"
#include "io/json_field.h"
#include "planner/device_file.h"
#include "planner/kernel_times.h"

namespace coppice {
namespace {

// Commits are timed as a pair; each half takes its share.
constexpr double kAcceptShare = 0.5;

using Kernels = std::vector<MeasuredKernel>;

std::int64_t size_of_field(const JsonField& shape, const char* key) {
  return shape.get<std::int64_t>(key, 0);
}

void add_attention(const JsonField& shape, double us, Kernels& kernels) {
  const std::int64_t batch = size_of_field(shape, "batch");
  // Kimi K2's and tiny-k2's caches: [latent | rotated key].
  const bool tiny = shape.get<std::string>("network", "") == "tiny";
  kernels.push_back({.op = "mla_attention",
                     .rows = batch * size_of_field(shape, "tree"),
                     .outputs = tiny ? 128 : 512,
                     .inputs = tiny ? 160 : 576,
                     .heads = size_of_field(shape, "num_heads"),
                     .sequences = batch,
                     .context = size_of_field(shape, "context"),
                     .us = us});
}

// An op of backend.h, or a pair of them; blocks of many ops are left out.
void add_case(const std::string& kernel, const JsonField& shape, double us, Kernels& kernels) {
  const auto size = [&](const char* key) { return size_of_field(shape, key); };
  if (kernel == "moe_experts")
    kernels.push_back({.op = kernel,
                       .rows = size("rows"),
                       .outputs = size("intermediate_size"),
                       .inputs = size("hidden_size"),
                       .num_experts = size("experts"),
                       .top_k = size("top_k"),
                       .us = us});
  if (kernel == "linear" || kernel == "head_linear")
    kernels.push_back({.op = kernel,
                       .rows = size("rows"),
                       .outputs = size("outputs") * std::max<std::int64_t>(size("num_heads"), 1),
                       .inputs = size("inputs"),
                       .heads = std::max<std::int64_t>(size("num_heads"), 1),
                       .us = us});
  if (kernel == "mla_attention") add_attention(shape, us, kernels);
  if (kernel == "top_k_log_probs" || kernel == "sample_rows")
    kernels.push_back({.op = kernel,
                       .rows = size("rows"),
                       .outputs = kernel == "sample_rows" ? 0 : 64,
                       .inputs = size("vocab_size"),
                       .us = us});
  if (kernel == "build_tree" || kernel == "build_tree + compile_tree") {
    const std::int64_t budget = size("budget"), batch = size("batch");
    if (kernel == "build_tree") {
      kernels.push_back({.op = kernel, .rows = budget, .sequences = batch, .us = us});
      return;
    }
    // Of the pair, what building alone does not take.
    for (const MeasuredKernel& build : kernels)
      if (build.op == "build_tree" && build.rows == budget && build.sequences == batch)
        us -= build.us;
    kernels.push_back({.op = "compile_tree", .rows = budget, .sequences = batch, .us = us});
  }
  if (kernel == "accept_path + move_kv")
    for (const bool accept : {true, false})
      kernels.push_back({.op = accept ? "accept_path" : "move_kv",
                         .rows = size("batch"),
                         .sequences = size("batch"),
                         .us = us * (accept ? kAcceptShare : 1 - kAcceptShare)});
  constexpr const char* kRowOps[] = {"embed",      "rms_norm",  "add_rms_norm",
                                     "silu_mul",   "moe_route", "mla_rope_and_write_kv",
                                     "gather_rows"};
  if (std::ranges::find(kRowOps, kernel) != std::end(kRowOps))
    kernels.push_back({.op = kernel, .rows = size("rows"), .us = us});
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
  device.read_tb_s = root.get<double>("read_gb_per_s") / 1000;
  device.read_is_measured = true;
  if (const auto tflops = root.find("tensor_tflops")) device.bf16_reached = tflops->as<double>();
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
    add_case(entry.get<std::string>("kernel"), entry.at("shape"), us->as<double>(), kernels);
  }
  if (kernels.empty()) root.at("cases").fail("holds no kernel that was timed");
  return {std::move(kernels), measured_device(root), path};
}

}  // namespace coppice
