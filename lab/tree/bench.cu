// Times in a captured graph, one launch after another as in a round; inputs rotate past the L2.
// usage: bench [edges]
#include <cuda_bf16.h>

#include <cstring>
#include <memory>
#include <random>

#include "bench_edges.h"
#include "device.h"
#include "kernels/kv/move_kv.h"
#include "kernels/sample/sample_greedy.h"
#include "kernels/sample/sample_rows.h"
#include "kernels/sample/top_k_log_probs.h"
#include "kernels/tree/accept_path.h"
#include "kernels/tree/build_tree.h"
#include "kernels/tree/compile_tree.h"

namespace lab {
namespace {

using namespace coppice::kernels;

constexpr int kVocab = 163840;

__global__ void fill_normal(float* wide, __nv_bfloat16* narrow, size_t n, uint32_t seed) {
  for (size_t i = blockIdx.x * size_t{256} + threadIdx.x; i < n; i += gridDim.x * size_t{256}) {
    uint32_t h = static_cast<uint32_t>(i) * 2654435761u ^ seed;
    float sum = 0;
    for (int j = 0; j < 4; ++j) {
      h ^= h >> 16, h *= 0x7feb352du, h ^= h >> 15, h *= 0x846ca68bu, h ^= h >> 16;
      sum += static_cast<float>(h) * 0x1p-32f - 0.5f;
    }
    const float x = sum * 5.2f + ((h & 0x3fff) == 7 ? 12.0f : 0.0f);
    if (wide != nullptr) wide[i] = x;
    if (narrow != nullptr) narrow[i] = __float2bfloat16(x);
  }
}

__global__ __launch_bounds__(512) void read_all(const uint4* data, size_t n, uint32_t* sink) {
  uint32_t sum = 0;
  for (size_t i = blockIdx.x * size_t{512} + threadIdx.x; i < n; i += gridDim.x * size_t{512}) {
    const uint4 v = __ldcs(data + i);
    sum ^= v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 0x12345678u) *sink = sum;
}

void bench_ceiling() {
  const size_t bytes = size_t{4} << 30;
  DeviceArray<char> data(bytes, 1);
  DeviceArray<uint32_t> sink(1);
  const double us = time_in_graph(1, [&](int, cudaStream_t stream) {
    read_all<<<132 * 4, 512, 0, stream>>>(reinterpret_cast<uint4*>(data.get()), bytes / 16,
                                          sink.get());
  });
  std::printf("read ceiling: %.2f TB/s\n", static_cast<double>(bytes) / us * 1e-6);
}

void bench_top_k(int rows, int k, bool bf16) {
  const size_t row_bytes = static_cast<size_t>(kVocab) * (bf16 ? 2 : 4);
  const int copies = std::max<int>(2, static_cast<int>((200u << 20) / (row_bytes * rows)));
  const size_t elements = static_cast<size_t>(copies) * rows * kVocab;
  DeviceArray<char> logits(elements * (bf16 ? 2 : 4));
  fill_normal<<<1024, 256>>>(bf16 ? nullptr : reinterpret_cast<float*>(logits.get()),
                             bf16 ? reinterpret_cast<__nv_bfloat16*>(logits.get()) : nullptr,
                             elements, 1);
  DeviceArray<int32_t> ids(static_cast<size_t>(rows) * k);
  DeviceArray<float> log_probs(static_cast<size_t>(rows) * k);
  DeviceArray<char> workspace(top_k_log_probs_workspace_bytes(rows, kVocab), 0);
  const int launches = std::min(copies * 2, 40);
  const double us = time_in_graph(launches, [&](int i, cudaStream_t stream) {
    TopKLogProbsParams p;
    p.logits = logits.get() + (i % copies) * row_bytes * rows;
    p.logits_are_bf16 = bf16;
    p.row_stride = p.vocab_size = kVocab;
    p.num_rows = p.max_rows = rows;
    p.k = k;
    p.ids = ids.get();
    p.log_probs = log_probs.get();
    p.workspace = workspace.get();
    CHECK_CUDA(top_k_log_probs(p, stream));
  });
  std::printf("top_k_log_probs %s rows=%4d k=%2d: %7.2f us  %.2f TB/s\n", bf16 ? "bf16" : "fp32",
              rows, k, us, static_cast<double>(row_bytes) * rows / us * 1e-6);
}

void bench_greedy(int rows) {
  const int copies = std::max<int>(2, (200 << 20) / (kVocab * 4 * rows));
  const size_t elements = static_cast<size_t>(copies) * rows * kVocab;
  DeviceArray<float> logits(elements);
  fill_normal<<<1024, 256>>>(logits.get(), nullptr, elements, 2);
  DeviceArray<int32_t> choices(rows), finite(rows);
  DeviceArray<char> workspace(sample_greedy_workspace_bytes(rows), 0);
  const double us = time_in_graph(std::min(copies * 2, 40), [&](int i, cudaStream_t stream) {
    SampleGreedyParams p{logits.get() + static_cast<size_t>(i % copies) * rows * kVocab,
                         kVocab,
                         nullptr,
                         rows,
                         kVocab,
                         rows,
                         choices.get(),
                         finite.get(),
                         workspace.get()};
    CHECK_CUDA(sample_greedy(p, stream));
  });
  std::printf("sample_greedy rows=%4d: %7.2f us  %.2f TB/s\n", rows, us,
              static_cast<double>(rows) * kVocab * 4 / us * 1e-6);
}

template <typename T>
std::unique_ptr<DeviceArray<T>> constant(size_t n, T value) {
  return std::make_unique<DeviceArray<T>>(std::vector<T>(n, value));
}

void bench_sample(int rows, int top_k, float top_p, float penalty, const char* label) {
  const int copies = std::max<int>(2, (100 << 20) / (kVocab * 4 * rows));
  const size_t elements = static_cast<size_t>(copies) * rows * kVocab;
  DeviceArray<float> logits(elements);
  fill_normal<<<1024, 256>>>(logits.get(), nullptr, elements, 2);
  auto zeros = constant<int32_t>(rows, 0);
  DeviceArray<int32_t> choices(rows), finite(rows), history(4096, 0);
  DeviceArray<uint32_t> counts(kVocab, 0);
  auto temperature = constant<float>(1, 0.8f), d_top_p = constant<float>(1, top_p);
  auto min_p = constant<float>(1, 0.0f), repetition = constant<float>(1, penalty);
  auto none = constant<float>(1, 0.0f);
  auto d_top_k = constant<int32_t>(1, top_k), length = constant<int32_t>(1, 4096);
  auto no_ids = constant<int32_t>(4, -1);
  auto seed = constant<int64_t>(1, 17);
  SampleRowsParams p;
  p.row_stride = p.vocab_size = kVocab;
  p.positions = p.seq_of_row = p.node_of_row = zeros->get();
  p.trees = {zeros->get(), zeros->get(), zeros->get(), nullptr, nullptr, 0};
  p.temperature = temperature->get();
  p.top_k = d_top_k->get();
  p.top_p = d_top_p->get();
  p.min_p = min_p->get();
  p.repetition_penalty = repetition->get();
  p.presence_penalty = p.frequency_penalty = none->get();
  p.seed = seed->get();
  p.choice_index = p.prompt_len = p.min_tokens = zeros->get();
  p.history = history.get();
  p.history_len = length->get();
  p.bias_ids = p.stop_ids = no_ids->get();
  p.bias_values = none->get();
  p.history_stride = 4096;
  p.max_bias = p.max_stop_ids = 4;
  p.num_seqs = 1;
  p.num_rows = rows;
  p.choices = choices.get();
  p.finite = finite.get();
  p.token_counts = counts.get();
  const double us = time_in_graph(std::min(copies * 2, 20), [&](int i, cudaStream_t stream) {
    p.logits = logits.get() + static_cast<size_t>(i % copies) * rows * kVocab;
    CHECK_CUDA(sample_rows(p, stream));
  });
  std::printf("sample_rows rows=%4d %-28s: %7.2f us\n", rows, label, us);
}

// Draft log-probabilities like a real drafter's: a sharp first rank, then a tail.
void make_draft(int num_seqs, int depth, int k, std::vector<int32_t>& ids,
                std::vector<float>& log_probs) {
  std::mt19937 rng(5);
  std::uniform_real_distribution<float> uniform(0, 1);
  for (int row = 0; row < num_seqs * depth; ++row) {
    float value = -0.7f * uniform(rng);
    for (int r = 0; r < k; ++r) {
      ids.push_back(static_cast<int32_t>(rng() % kVocab));
      log_probs.push_back(value);
      value -= 0.1f + (r == 0 ? 2.5f : 0.6f) * uniform(rng);
    }
  }
}

struct TreeBench {
  TreeBench(int batch, int depth, int budget)
      : batch(batch),
        rows(batch * (budget + 1)),
        max_path(depth + 1),
        tokens(static_cast<size_t>(batch) * (budget + 1)),
        parents(tokens.size()),
        depths(tokens.size()),
        counts(batch),
        scores(tokens.size()),
        row_words(static_cast<size_t>(7) * rows),
        path(static_cast<size_t>(rows) * max_path),
        offsets(batch + 1),
        chosen(2),
        ticket(1, 0) {
    std::vector<int32_t> draft_ids;
    std::vector<float> draft;
    const int k = std::min(budget, 64);
    make_draft(batch, depth, k, draft_ids, draft);
    ids = std::make_unique<DeviceArray<int32_t>>(draft_ids);
    log_probs = std::make_unique<DeviceArray<float>>(draft);
    anchors = constant<int32_t>(batch, 11);
    budgets = constant<int32_t>(batch, budget);
    context = constant<int32_t>(batch, 4000);
    std::vector<int32_t> blocks(static_cast<size_t>(batch) * 128);
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int32_t>(i);
    tables = std::make_unique<DeviceArray<int32_t>>(blocks);
    std::vector<int32_t> bucket_rows;
    std::vector<float> costs;
    for (int i = 1; i <= 16; ++i) {
      bucket_rows.push_back(std::max(batch, rows * i / 16));
      costs.push_back(4.0f + 0.002f * static_cast<float>(bucket_rows.back()));
    }
    buckets = std::make_unique<DeviceArray<int32_t>>(bucket_rows);
    cost_ms = std::make_unique<DeviceArray<float>>(costs);
    const TreeArrays trees{tokens.get(), parents.get(), depths.get(),
                           scores.get(), counts.get(),  budget};
    build = {ids->get(),
             log_probs->get(),
             anchors->get(),
             budgets->get(),
             nullptr,
             nullptr,
             batch,
             depth,
             k,
             trees};
    compile.trees = trees;
    compile.context_len = context->get();
    compile.block_tables = tables->get();
    compile.cost_ms = cost_ms->get();
    compile.bucket_rows = buckets->get();
    compile.num_buckets = 16;
    compile.num_seqs = batch;
    compile.max_blocks = 128;
    compile.num_rows = rows;
    compile.max_path = max_path;
    int32_t** fields[7] = {&compile.token_ids,  &compile.positions,   &compile.slots,
                           &compile.seq_of_row, &compile.node_of_row, &compile.kv_len,
                           &compile.path_len};
    for (int i = 0; i < 7; ++i) *fields[i] = row_words.get() + static_cast<size_t>(i) * rows;
    compile.path = path.get();
    compile.row_offsets = offsets.get();
    compile.chosen = chosen.get();
    compile.ticket = ticket.get();
  }
  int batch, rows, max_path;
  DeviceArray<int32_t> tokens, parents, depths, counts;
  DeviceArray<float> scores;
  DeviceArray<int32_t> row_words, path, offsets, chosen, ticket;
  std::unique_ptr<DeviceArray<int32_t>> ids, anchors, budgets, context, tables, buckets;
  std::unique_ptr<DeviceArray<float>> log_probs, cost_ms;
  BuildTreeParams build;
  CompileTreeParams compile;
};

void bench_tree(int batch, int depth, int budget) {
  TreeBench bench(batch, depth, budget);
  const double build = time_in_graph(
      20, [&](int, cudaStream_t stream) { CHECK_CUDA(build_tree(bench.build, stream)); });
  const double compile = time_in_graph(
      20, [&](int, cudaStream_t stream) { CHECK_CUDA(compile_tree(bench.compile, stream)); });
  const double both = time_in_graph(20, [&](int, cudaStream_t stream) {
    CHECK_CUDA(build_tree(bench.build, stream));
    CHECK_CUDA(compile_tree(bench.compile, stream));
  });
  const double once = time_in_graph(1, [&](int, cudaStream_t stream) {
    CHECK_CUDA(build_tree(bench.build, stream));
    CHECK_CUDA(compile_tree(bench.compile, stream));
  });
  std::printf(
      "tree B=%2d depth=%2d N=%3d: build %6.2f  compile %6.2f  both %6.2f us (alone in a graph "
      "%6.2f), rows %d of %d\n",
      batch, depth, budget, build, compile, both, once, bench.chosen.host()[1], bench.rows);
}

void bench_commit(int batch, int budget) {
  const int planes = 61, row_bytes = 1152, depth = 7;
  TreeBench bench(batch, depth, budget);
  bench.compile.cost_ms = nullptr;
  CHECK_CUDA(build_tree(bench.build, nullptr));
  CHECK_CUDA(compile_tree(bench.compile, nullptr));
  const int max_path = bench.max_path;
  const size_t slots = static_cast<size_t>(batch) * 128 * 64;
  DeviceArray<char> cache(slots * row_bytes * planes, 1);
  // Choices follow the drafted path through the second-best child at depth 2, so that rows move.
  const auto tokens = bench.tokens.host(), parents = bench.parents.host();
  const auto offsets = bench.offsets.host();
  std::vector<int32_t> choices(bench.rows, -5);
  for (int s = 0; s < batch; ++s) {
    const size_t base = static_cast<size_t>(s) * (budget + 1);
    for (int i = 1; i <= budget; ++i) {
      int first = -1, second = -1;
      for (int j = 1; j <= budget; ++j) {
        if (parents[base + j] != parents[base + i]) continue;
        if (first < 0) {
          first = j;
        } else if (second < 0) {
          second = j;
        }
      }
      const int pick = parents[base + i] == 0 && second > 0 ? second : first;
      choices[offsets[s] + parents[base + i]] = tokens[base + pick];
    }
  }
  auto finite = constant<int32_t>(bench.rows, 1), zero = constant<int32_t>(batch, 0);
  auto most = constant<int32_t>(batch, 1 << 30), stops = constant<int32_t>(4 * batch, -1);
  auto history_len = constant<int32_t>(batch, 0), context = constant<int32_t>(batch, 4000);
  DeviceArray<int32_t> d_choices(choices);
  const size_t places = static_cast<size_t>(batch) * max_path;
  DeviceArray<int32_t> out(places * 7), num(batch), reason(batch), anchors(batch);
  AcceptPathParams a;
  a.trees = bench.build.trees;
  a.row_offsets = bench.offsets.get();
  a.choices = d_choices.get();
  a.finite = finite->get();
  a.slots = bench.compile.slots;
  a.block_tables = bench.tables->get();
  a.prompt_len = zero->get();
  a.max_tokens = most->get();
  a.stop_ids = stops->get();
  a.history_len = history_len->get();
  a.context_len = context->get();
  a.anchors = anchors.get();
  int32_t** fields[7] = {&a.accepted_rows, &a.emitted,           &a.move_src,     &a.move_dst,
                         &a.feature_rows,  &a.feature_positions, &a.feature_slots};
  for (int i = 0; i < 7; ++i) *fields[i] = out.get() + places * i;
  a.num_emitted = num.get();
  a.finish_reason = reason.get();
  a.num_seqs = batch;
  a.max_path = max_path;
  a.max_blocks = 128;
  a.max_stop_ids = 4;
  MoveKvParams m;
  for (int i = 0; i < planes; ++i) m.planes[i] = cache.get() + slots * row_bytes * i;
  m.num_planes = planes;
  m.row_bytes = row_bytes;
  m.src = a.move_src;
  m.dst = a.move_dst;
  m.num_pairs = batch * max_path;
  const auto reset = [&](cudaStream_t stream) {
    CHECK_CUDA(cudaMemcpyAsync(context->get(), bench.context->get(), batch * 4,
                               cudaMemcpyDeviceToDevice, stream));
  };
  const double copy = time_in_graph(20, [&](int, cudaStream_t stream) { reset(stream); });
  const double accept = time_in_graph(20, [&](int, cudaStream_t stream) {
    reset(stream);
    CHECK_CUDA(accept_path(a, stream));
  });
  int moved = 0;
  for (int i = 0; i < batch * max_path; ++i) {
    moved += out.host()[places * 2 + i] >= 0;
    if (i > 64) break;
  }
  const double both = time_in_graph(20, [&](int, cudaStream_t stream) {
    reset(stream);
    CHECK_CUDA(accept_path(a, stream));
    CHECK_CUDA(move_kv(m, stream));
  });
  const double move =
      time_in_graph(20, [&](int, cudaStream_t stream) { CHECK_CUDA(move_kv(m, stream)); });
  int total = 0;
  for (int32_t slot : std::vector<int32_t>(out.host())) (void)slot;
  const auto all = out.host();
  for (size_t i = 0; i < places; ++i) total += all[places * 2 + i] >= 0;
  std::printf(
      "commit B=%2d N=%2d: accept %5.2f  move %5.2f  accept+move %5.2f us; %d rows moved (%.1f "
      "MB), "
      "reset copy %.2f us subtracted\n",
      batch, budget, accept - copy, move, both - copy, total, 2e-6 * total * planes * row_bytes,
      copy);
}

}  // namespace
}  // namespace lab

int main(int argc, char** argv) {
  using namespace lab;
  if (argc > 1 && std::strcmp(argv[1], "edges") == 0) {
    bench_edges();
    bench_latency();
    return 0;
  }
  bench_ceiling();
  for (int batch : {1, 8, 64}) {
    for (int rows : {7, 15}) bench_top_k(rows * batch, 64, true);
  }
  bench_top_k(15, 16, true);
  bench_top_k(15, 64, false);
  bench_top_k(120, 64, false);
  for (int rows : {1, 17, 64, 256, 1024}) bench_greedy(rows);
  for (int rows : {17, 132, 512}) {
    bench_sample(rows, 0, 1.0f, 1.0f, "plain");
    bench_sample(rows, 40, 1.0f, 1.0f, "top-k 40");
    bench_sample(rows, 0, 0.95f, 1.0f, "top-p 0.95");
    bench_sample(rows, 40, 0.95f, 1.1f, "top-k, top-p, penalties");
  }
  for (int budget : {16, 64}) {
    for (int batch : {1, 8, 64}) bench_tree(batch, budget == 16 ? 7 : 15, budget);
  }
  for (int budget : {8, 32, 128, 256}) bench_tree(1, 15, budget);
  for (int batch : {1, 8, 64}) bench_commit(batch, 16);
  return 0;
}
