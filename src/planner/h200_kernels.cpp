// Kernels measured on one H200, from docs/results/{moe,mla,tree}-h200.md: what plans rest on until
// a file of `coppice bench kernels` is given.
#include <initializer_list>
#include <tuple>

#include "planner/kernel_times.h"

namespace coppice {
namespace {

using Kernels = std::vector<MeasuredKernel>;

struct RowsAndTime {
  std::int64_t rows;
  double us;
};

void add_experts(Kernels& kernels) {
  const auto add = [&](std::int64_t width, std::initializer_list<RowsAndTime> times) {
    for (const auto& [rows, us] : times)
      kernels.push_back({.op = "moe_experts",
                         .rows = rows,
                         .outputs = width,
                         .inputs = 7168,
                         .num_experts = 384,
                         .top_k = 8,
                         .us = us});
  };
  add(256, {{1, 17.5},
            {2, 22},
            {4, 31.24},
            {8, 52.05},
            {17, 92.65},
            {33, 151.3},
            {64, 219.2},
            {128, 296.2},
            {256, 332.7},
            {512, 407.2},
            {1024, 714.1}});
  add(2048, {{1, 53.69}, {8, 348.2}, {17, 650.9}, {64, 1816}, {256, 2581}, {1024, 5640}});
}

void add_products(Kernels& kernels) {
  const auto add = [&](std::int64_t outputs, std::int64_t inputs, std::int64_t heads,
                       std::initializer_list<RowsAndTime> times) {
    for (const auto& [rows, us] : times)
      kernels.push_back({.op = heads == 1 ? "linear" : "head_linear",
                         .rows = rows,
                         .outputs = outputs,
                         .inputs = inputs,
                         .heads = heads,
                         .us = us});
  };
  add(2112, 7168, 1, {{1, 10.23}, {8, 10.5}, {17, 11.56}, {33, 12.43}, {64, 13.33}, {256, 22.91}});
  add(1536, 1536, 1, {{1, 3.141}, {8, 3.375}, {17, 3.594}, {33, 3.606}, {64, 4.019}, {256, 7.281}});
  add(7168, 1024, 1, {{1, 4.768}, {8, 5.081}, {17, 5.402}, {33, 5.663}, {64, 6.282}, {256, 10.41}});
  add(512, 7168, 1, {{1, 3.974}, {8, 4.217}, {17, 4.496}, {33, 4.644}, {64, 4.894}, {256, 10.17}});
  add(7168, 256, 1, {{1, 2.056}, {8, 2.136}, {17, 3.154}, {33, 3.541}, {64, 4.519}, {256, 5.909}});
  add(384, 7168, 1, {{1, 3.42}, {8, 3.805}, {17, 3.893}, {33, 4.066}, {64, 4.303}, {256, 8.135}});
  add(4608, 7168, 1, {{1, 22.76}, {17, 24.07}, {64, 25.75}});
  add(7168, 2304, 1, {{1, 8.917}, {17, 9.828}, {64, 10.58}});
  add(20480, 7168, 1, {{1, 75.19}, {8, 75.42}, {17, 77.11}, {33, 77.96}, {64, 80.5}, {256, 128.9}});
  add(4096, 128, 8, {{1, 1.773}, {8, 1.847}, {17, 2.739}, {33, 3.274}, {64, 4.621}, {256, 6.25}});
  add(1024, 512, 8, {{1, 2.498}, {8, 2.706}, {17, 2.905}, {33, 3.143}, {64, 4.181}, {256, 6.489}});
}

void add_attention(Kernels& kernels) {
  const auto add = [&](std::int64_t heads, std::int64_t batch, std::int64_t context,
                       std::initializer_list<RowsAndTime> times) {
    for (const auto& [tree, us] : times)
      kernels.push_back({.op = "mla_attention",
                         .rows = batch * tree,
                         .outputs = 512,
                         .inputs = 576,
                         .heads = heads,
                         .sequences = batch,
                         .context = context,
                         .us = us});
  };
  add(8, 1, 1024, {{1, 10.5}, {17, 12.9}, {33, 14.9}, {64, 19.6}});
  add(8, 1, 4096, {{1, 15.8}, {17, 17.3}, {33, 20.8}, {64, 34.5}});
  add(8, 1, 8192, {{1, 18.3}, {17, 22.3}, {33, 33.2}, {64, 49.8}});
  add(8, 1, 32768, {{1, 31.3}, {17, 51.6}, {33, 68.8}, {64, 97.6}});
  add(8, 1, 131072, {{1, 69.4}, {17, 122}, {33, 186}, {64, 308}});
  add(8, 8, 1024, {{1, 13.2}, {17, 41.6}, {64, 97.1}});
  add(8, 8, 8192, {{1, 42.0}, {17, 108}, {64, 250}});
  add(8, 8, 32768, {{1, 99.6}, {17, 290}, {64, 720}});
  add(8, 8, 131072, {{1, 327}, {17, 1004}, {64, 2571}});
  add(64, 1, 8192, {{1, 27.5}, {17, 84.1}, {33, 117}});
  add(64, 1, 32768, {{1, 42.9}, {17, 196}, {33, 315}});
  add(64, 1, 131072, {{1, 79.7}, {17, 650}, {33, 1139}});
  add(64, 8, 8192, {{1, 48.6}, {17, 558}});
  add(64, 8, 32768, {{1, 109}, {17, 1689}});
}

void add_trees_and_vocabulary(Kernels& kernels) {
  const auto add_tree = [&](const char* op, std::int64_t budget, std::int64_t batch, double us) {
    kernels.push_back({.op = op, .rows = budget, .sequences = batch, .us = us});
  };
  add_tree("build_tree", 16, 1, 3.48);
  add_tree("compile_tree", 16, 1, 2.78);
  add_tree("build_tree", 64, 1, 11.4);
  add_tree("compile_tree", 64, 1, 3.21);
  add_tree("build_tree", 16, 8, 3.54);
  add_tree("compile_tree", 16, 8, 4.41);
  add_tree("build_tree", 64, 8, 11.4);
  add_tree("compile_tree", 64, 8, 4.99);
  add_tree("build_tree", 16, 64, 3.59);
  add_tree("compile_tree", 16, 64, 7.96);
  add_tree("build_tree", 64, 64, 11.5);
  add_tree("compile_tree", 64, 64, 9.99);
  for (const auto& [rows, us] : std::initializer_list<RowsAndTime>{
           {7, 10.72}, {15, 12.25}, {56, 18.39}, {120, 26.43}, {448, 65.33}, {960, 127.7}})
    kernels.push_back(
        {.op = "top_k_log_probs", .rows = rows, .outputs = 64, .inputs = 163840, .us = us});
  for (const auto& [rows, us] : std::initializer_list<RowsAndTime>{
           {1, 3.719}, {17, 5.711}, {64, 13.5}, {256, 43}, {1024, 157}})
    kernels.push_back({.op = "sample_rows", .rows = rows, .inputs = 163840, .us = us});
  for (const auto& [batch, us] :
       std::initializer_list<RowsAndTime>{{1, 4.151}, {8, 4.992}, {64, 19.66}})
    for (const char* op : {"accept_path", "move_kv"})
      kernels.push_back({.op = op, .rows = batch, .sequences = batch, .us = us / 2});
}

}  // namespace

const KernelTimes& KernelTimes::shipped() {
  static const KernelTimes times = [] {
    Kernels kernels;
    add_experts(kernels);
    add_products(kernels);
    add_attention(kernels);
    add_trees_and_vocabulary(kernels);
    return KernelTimes(std::move(kernels), find_device("h200"),
                       "kernels measured on one H200 on 2026-11-29 (docs/results)");
  }();
  return times;
}

}  // namespace coppice
