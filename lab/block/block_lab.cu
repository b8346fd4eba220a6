// Times chains of a layer's kernels in one graph, as a decode step enqueues them: the attention
// block (norm to o_proj) and the FFN block (norm to the sum of the experts) of one TP-8 rank of
// Kimi K2.6, the latter kernel by kernel and fused. Checks first that a chain in a graph leaves the
// same bits as one that waits after every kernel, and that the fused kernels leave those of the
// others. Usage: block_lab [context [ablate]]: with `ablate`, what each kernel adds to its chain.
#include <string>

#include "../common.h"
#include "kernels/gemm/skinny_gemm.h"
#include "kernels/mla/mla_attention.h"
#include "kernels/mla/mla_queries.h"
#include "kernels/moe/expert_blob.h"
#include "kernels/moe/moe_experts.h"
#include "kernels/moe/moe_prepare.h"
#include "kernels/moe/moe_route.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/rope/mla_rope.h"
#include "kernels/rows/rows.h"

using namespace coppice::kernels;
using lab::device_array;
using lab::device_copy;
using bf16 = __nv_bfloat16;

namespace {

constexpr int kLayers = 16, kMost = 64;
constexpr int kHidden = 7168, kHeads = 8, kQRank = 1536, kRank = 512, kRope = 64, kNope = 128;
constexpr int kExperts = 384, kTopK = 8, kWidth = 256;

__global__ void fill_floats(float* to, size_t count, float base, float scale, uint64_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x)
    to[i] = base + scale * lab::uniform(seed + i);
}

bf16* weights(size_t count, uint64_t seed, float deviation = 0.02f) {
  auto* w = device_array<bf16>(count);
  lab::fill_normal<<<1320, 256>>>(w, count, seed << 40, deviation);
  return w;
}

float* floats(size_t count, float base, float scale) {
  auto* w = device_array<float>(count);
  fill_floats<<<264, 256>>>(w, count, base, scale, 99);
  return w;
}

struct Layer {
  bf16 *qkv_a, *q_b, *k_absorbed, *v_absorbed, *o_proj, *router, *gate_up, *down, *cache;
  const uint8_t *w13, *w2;
};

enum class Ffn { kDense, kApart, kFused };  // kDense: without the experts

struct Step {
  bool waits;  // for every kernel
  int rows, context, num_blocks;
  std::vector<Layer> layers;
  bf16 *first, *residual, *delta, *x, *qkv_a, *c_q, *q, *q_lat, *o_lat, *o, *gate_up, *act, *shared;
  float *logits, *topk_weights, *norm, *bias, *cos_sin;
  int32_t *topk_ids, *seq, *kv_len, *path_len, *path, *tables, *positions, *slots;
  uint8_t* experts_workspace;
  MlaAttentionParams mla;
};

void gemm(const void* x, int64_t x_stride, const bf16* w, void* out, int64_t out_stride, int rows,
          int outputs, int inputs, int heads, bool f32, cudaStream_t stream) {
  CHECK_CUDA(skinny_gemm({.x = x,
                          .weight = w,
                          .out = out,
                          .num_tokens = rows,
                          .num_heads = heads,
                          .outputs = outputs,
                          .inputs = inputs,
                          .x_stride = x_stride,
                          .out_stride = out_stride,
                          .out_is_float = f32},
                         stream));
}

void wait(const Step& s, cudaStream_t stream) {
  if (s.waits) CHECK_CUDA(cudaStreamSynchronize(stream));
}

// From the first projection to what attention reads, in four kernels.
void composed_queries(const Step& s, const Layer& l, cudaStream_t stream) {
  const int T = s.rows, qkv = kQRank + kRank + kRope, q_width = kHeads * (kNope + kRope);
  CHECK_CUDA(rms_norm({.x = s.qkv_a,
                       .weight = s.norm,
                       .out = s.c_q,
                       .x_row_stride = qkv,
                       .out_row_stride = kQRank,
                       .num_rows = T,
                       .hidden_size = kQRank,
                       .eps = 1e-6f},
                      stream));
  wait(s, stream);
  gemm(s.c_q, kQRank, l.q_b, s.q, q_width, T, q_width, kQRank, 1, false, stream);
  gemm(s.q, q_width, l.k_absorbed, s.q_lat, kHeads * kRank, T, kRank, kNope, kHeads, false, stream);
  wait(s, stream);
  CHECK_CUDA(mla_rope_and_write_kv({.q_pe = s.q + kHeads * kNope,
                                    .q_pe_row_stride = q_width,
                                    .q_pe_head_stride = kRope,
                                    .kv_a = s.qkv_a + kQRank,
                                    .kv_a_row_stride = qkv,
                                    .kv_norm = s.norm,
                                    .eps = 1e-6f,
                                    .cos_sin = s.cos_sin,
                                    .positions = s.positions,
                                    .slots = s.slots,
                                    .cache = l.cache,
                                    .num_rows = T,
                                    .num_heads = kHeads,
                                    .kv_lora_rank = kRank,
                                    .rope_dim = kRope},
                                   stream));
}

// The same in one kernel.
void fused_queries(const Step& s, const Layer& l, cudaStream_t stream) {
  const int q_width = kHeads * (kNope + kRope);
  CHECK_CUDA(mla_queries({.qkv_a = s.qkv_a,
                          .qkv_a_stride = kQRank + kRank + kRope,
                          .q_norm = s.norm,
                          .kv_norm = s.norm,
                          .eps = 1e-6f,
                          .q_b = l.q_b,
                          .k_absorbed = l.k_absorbed,
                          .cos_sin = s.cos_sin,
                          .positions = s.positions,
                          .slots = s.slots,
                          .cache = l.cache,
                          .q_lat = s.q_lat,
                          .q_pe = s.q + kHeads * kNope,
                          .q_pe_row_stride = q_width,
                          .q_pe_head_stride = kRope,
                          .num_rows = s.rows,
                          .num_heads = kHeads},
                         stream));
}

void attention_block(const Step& s, const Layer& l, cudaStream_t stream, int skipped) {
  const int T = s.rows, qkv = kQRank + kRank + kRope, q_width = kHeads * (kNope + kRope);
  if (skipped != 0)
    CHECK_CUDA(rms_norm({.x = s.residual,
                         .delta = s.delta,
                         .residual = s.residual,
                         .weight = s.norm,
                         .out = s.x,
                         .x_row_stride = kHidden,
                         .delta_row_stride = kHidden,
                         .residual_row_stride = kHidden,
                         .out_row_stride = kHidden,
                         .num_rows = T,
                         .hidden_size = kHidden,
                         .eps = 1e-5f},
                        stream));
  wait(s, stream);
  if (skipped != 1) gemm(s.x, kHidden, l.qkv_a, s.qkv_a, qkv, T, qkv, kHidden, 1, false, stream);
  if (skipped != 2) {
    if (s.rows <= kMlaQueriesMaxRows)
      fused_queries(s, l, stream);
    else
      composed_queries(s, l, stream);
  }
  MlaAttentionParams mla = s.mla;
  mla.cache = l.cache;
  wait(s, stream);
  if (skipped != 3) CHECK_CUDA(mla_attention(mla, stream));
  if (skipped != 4)
    gemm(s.o_lat, kHeads * kRank, l.v_absorbed, s.o, kHeads * kNope, T, kNope, kRank, kHeads, false,
         stream);
  wait(s, stream);
  if (skipped != 5)
    gemm(s.o, kHeads * kNope, l.o_proj, s.delta, kHidden, T, kHidden, kHeads * kNope, 1, false,
         stream);
  wait(s, stream);
}

SkinnyGemmParams product(const Step& s, const bf16* w, void* out, int outputs, bool f32) {
  return {.x = s.x,
          .weight = w,
          .out = out,
          .num_tokens = s.rows,
          .outputs = outputs,
          .inputs = kHidden,
          .x_stride = kHidden,
          .out_stride = outputs,
          .out_is_float = f32};
}

MoeRouteParams route_params(const Step& s) {
  return {.logits = s.logits,
          .bias = s.bias,
          .seq_of_row = s.seq,
          .topk_ids = s.topk_ids,
          .topk_weights = s.topk_weights,
          .num_tokens = s.rows,
          .num_experts = kExperts,
          .top_k = kTopK,
          .routed_scaling_factor = 2.8f};
}

MoeExpertsParams expert_params(const Step& s, const Layer& l) {
  return {.x = s.x,
          .topk_ids = s.topk_ids,
          .topk_weights = s.topk_weights,
          .w13 = l.w13,
          .w2 = l.w2,
          .shared = s.shared,
          .out = s.delta,
          .workspace = s.experts_workspace,
          .num_tokens = s.rows,
          .top_k = kTopK,
          .num_experts = kExperts,
          .hidden_size = kHidden,
          .intermediate_size = kWidth};
}

void ffn_norm(const Step& s, cudaStream_t stream) {
  CHECK_CUDA(rms_norm({.x = s.residual,
                       .delta = s.delta,
                       .residual = s.residual,
                       .weight = s.norm,
                       .out = s.x,
                       .x_row_stride = kHidden,
                       .delta_row_stride = kHidden,
                       .residual_row_stride = kHidden,
                       .out_row_stride = kHidden,
                       .num_rows = s.rows,
                       .hidden_size = kHidden,
                       .eps = 1e-5f},
                      stream));
}

void ffn_fused(const Step& s, const Layer& l, cudaStream_t stream, int skipped) {
  if (skipped != 0) ffn_norm(s, stream);
  wait(s, stream);
  if (skipped != 1)
    CHECK_CUDA(skinny_gemm_pair(product(s, l.router, s.logits, kExperts, true),
                                product(s, l.gate_up, s.gate_up, 2 * kWidth, false), stream));
  wait(s, stream);
  if (skipped != 2)
    CHECK_CUDA(moe_prepare(route_params(s),
                           {.gate_up = s.gate_up,
                            .down = l.down,
                            .out = s.shared,
                            .hidden_size = kHidden,
                            .intermediate_size = kWidth},
                           stream));
  wait(s, stream);
  if (skipped != 3) CHECK_CUDA(moe_experts(expert_params(s, l), stream));
  wait(s, stream);
}

void ffn_apart(const Step& s, const Layer& l, cudaStream_t stream, int skipped, bool experts) {
  const int T = s.rows;
  if (skipped != 0) ffn_norm(s, stream);
  wait(s, stream);
  if (skipped != 1) CHECK_CUDA(skinny_gemm(product(s, l.router, s.logits, kExperts, true), stream));
  wait(s, stream);
  if (skipped != 2) CHECK_CUDA(moe_route(route_params(s), stream));
  wait(s, stream);
  if (skipped != 3)
    CHECK_CUDA(skinny_gemm(product(s, l.gate_up, s.gate_up, 2 * kWidth, false), stream));
  wait(s, stream);
  if (skipped != 4)
    CHECK_CUDA(silu_mul({.gate_up = s.gate_up,
                         .gate_up_stride = 2 * kWidth,
                         .out = s.act,
                         .out_stride = kWidth,
                         .num_rows = T,
                         .size = kWidth},
                        stream));
  wait(s, stream);
  if (skipped != 5)
    gemm(s.act, kWidth, l.down, experts ? s.shared : s.delta, kHidden, T, kHidden, kWidth, 1, false,
         stream);
  wait(s, stream);
  if (experts && skipped != 6) CHECK_CUDA(moe_experts(expert_params(s, l), stream));
  wait(s, stream);
}

void ffn_block(const Step& s, const Layer& l, cudaStream_t stream, int skipped, Ffn form) {
  if (form == Ffn::kFused) {
    ffn_fused(s, l, stream, skipped);
  } else {
    ffn_apart(s, l, stream, skipped, form == Ffn::kApart);
  }
}

__global__ void fill_blob(uint32_t* blob, size_t words, uint64_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < words;
       i += size_t{gridDim.x} * blockDim.x) {
    const bool scale = i % (kCellBytes / 4) >= 256;
    blob[i] = scale ? 0x3B003B20u + (lab::hash(seed + i) & 0x000F000Fu) : lab::hash(seed + i);
  }
}

uint8_t* expert_blob(int rows, int inputs, uint64_t seed) {
  const size_t bytes = kExperts * expert_blob_bytes(expert_blob_shape(rows, inputs));
  auto* blob = device_array<uint8_t>(bytes);
  fill_blob<<<1320, 256>>>(reinterpret_cast<uint32_t*>(blob), bytes / 4, seed << 42);
  return blob;
}

Step make_step(int context) {
  Step s = {};
  s.context = context;
  s.num_blocks = (context + kMost) / 64 + 1;
  constexpr int kBlobs = 4;  // layers share those of the experts
  for (int i = 0; i < kLayers; ++i) {
    s.layers.push_back(
        {.qkv_a = weights(size_t(kQRank + kRank + kRope) * kHidden, 10 * i + 1),
         .q_b = weights(size_t(kHeads) * (kNope + kRope) * kQRank, 10 * i + 2),
         .k_absorbed = weights(size_t(kHeads) * kRank * kNope, 10 * i + 3),
         .v_absorbed = weights(size_t(kHeads) * kNope * kRank, 10 * i + 4),
         .o_proj = weights(size_t(kHidden) * kHeads * kNope, 10 * i + 5),
         .router = weights(size_t(kExperts) * kHidden, 10 * i + 6),
         .gate_up = weights(size_t(2) * kWidth * kHidden, 10 * i + 7),
         .down = weights(size_t(kHidden) * kWidth, 10 * i + 8),
         .cache = weights(size_t(s.num_blocks) * 64 * (kRank + kRope), 10 * i + 9, 1.0f),
         .w13 = i < kBlobs ? expert_blob(2 * kWidth, kHidden, i + 1) : s.layers[i % kBlobs].w13,
         .w2 = i < kBlobs ? expert_blob(kHidden, kWidth, i + 9) : s.layers[i % kBlobs].w2});
  }
  const auto activation = [](size_t width) { return weights(kMost * width, 777, 1.0f); };
  s.first = weights(size_t(kMost) * kHidden, 5, 1.0f);
  s.residual = activation(kHidden), s.delta = activation(kHidden), s.x = activation(kHidden);
  s.qkv_a = activation(kQRank + kRank + kRope), s.c_q = activation(kQRank);
  s.q = activation(kHeads * (kNope + kRope)), s.q_lat = activation(kHeads * kRank);
  s.o_lat = activation(kHeads * kRank), s.o = activation(kHeads * kNope);
  s.gate_up = activation(2 * kWidth), s.act = activation(kWidth), s.shared = activation(kHidden);
  s.logits = floats(kMost * kExperts, 0, 1), s.topk_weights = floats(kMost * kTopK, 0, 1);
  s.norm = floats(kHidden, 1, 0.1f), s.bias = floats(kExperts, 0, 0.1f);
  s.cos_sin = floats(size_t(context + kMost + 1) * kRope, 0, 1);
  s.topk_ids = device_array<int32_t>(kMost * kTopK);
  s.experts_workspace =
      device_array<uint8_t>(moe_experts_workspace_bytes(kMost, kTopK, kExperts, kHidden, kWidth));
  CHECK_CUDA(cudaMemset(s.experts_workspace, 0, moe_experts_counter_bytes(kTopK, kExperts)));
  std::vector<int32_t> table, path, position, slot;
  for (int i = 0; i < s.num_blocks; ++i) table.push_back(s.num_blocks - 1 - i);
  const auto slot_of = [&](int p) { return table[p / 64] * 64 + p % 64; };
  for (int t = 0; t < kMost; ++t) {
    position.push_back(context + std::min(t, 7));
    slot.push_back(slot_of(context + t));
    // A chain of up to seven, then leaves of its last node.
    for (int i = 0; i < 8; ++i) path.push_back(slot_of(context + (i == 7 ? std::max(t, 7) : i)));
  }
  s.tables = device_copy(table), s.path = device_copy(path);
  s.positions = device_copy(position), s.slots = device_copy(slot);
  s.seq = device_copy(std::vector<int32_t>(kMost, 0));
  s.kv_len = device_copy(std::vector<int32_t>(kMost, context));
  std::vector<int32_t> lengths;
  for (int t = 0; t < kMost; ++t) lengths.push_back(std::min(t, 7) + 1);
  s.path_len = device_copy(lengths);
  return s;
}

void plan(Step& s, int rows) {
  s.rows = rows;
  s.mla = {.q_lat = s.q_lat,
           .q_pe = s.q + kHeads * kNope,
           .q_pe_row_stride = kHeads * (kNope + kRope),
           .q_pe_head_stride = kRope,
           .o_lat = s.o_lat,
           .seq_of_row = s.seq,
           .kv_len = s.kv_len,
           .path_len = s.path_len,
           .path = s.path,
           .block_tables = s.tables,
           .max_path = 8,
           .max_blocks = s.num_blocks,
           .num_rows = rows,
           .num_heads = kHeads,
           .num_blocks = s.num_blocks,
           .kv_lora_rank = kRank,
           .qk_rope_head_dim = kRope,
           .softmax_scale = 0.07f,
           .workspace = device_array<uint8_t>(mla_attention_workspace_bytes(rows, 8))};
  CHECK_CUDA(mla_plan(s.mla, nullptr));
  CHECK_CUDA(cudaDeviceSynchronize());
}

// Rows as they enter the first layer, all different.
void reset(const Step& s, cudaStream_t stream) {
  const size_t bytes = size_t(kMost) * kHidden * 2;
  CHECK_CUDA(cudaMemcpyAsync(s.residual, s.first, bytes, cudaMemcpyDeviceToDevice, stream));
  CHECK_CUDA(cudaMemcpyAsync(s.delta, s.first, bytes, cudaMemcpyDeviceToDevice, stream));
}

// Words in which graphs of all layers, and the fused kernels, differ from the same kernels one at a
// time.
unsigned long long check(Step& s) {
  const size_t width = size_t(kMost) * kHidden;
  auto* want = device_array<bf16>(2 * width);
  const auto run = [&](cudaStream_t stream, Ffn form) {
    reset(s, stream);
    for (const Layer& l : s.layers) {
      attention_block(s, l, stream, -1);
      ffn_block(s, l, stream, -1, form);
    }
  };
  s.waits = true;
  run(nullptr, Ffn::kApart);
  s.waits = false;
  CHECK_CUDA(cudaMemcpy(want, s.residual, width * 2, cudaMemcpyDeviceToDevice));
  CHECK_CUDA(cudaMemcpy(want + width, s.delta, width * 2, cudaMemcpyDeviceToDevice));
  unsigned long long different = 0;
  for (const Ffn form : {Ffn::kApart, Ffn::kFused}) {
    for (int i = 0; i < 3; ++i) {
      lab::time_graph([&](cudaStream_t stream) { run(stream, form); }, 1, 1);  // three replays
      different += lab::different_words(s.residual, want, size_t(s.rows) * kHidden / 2) +
                   lab::different_words(s.delta, want + width, size_t(s.rows) * kHidden / 2);
    }
  }
  CHECK_CUDA(cudaFree(want));
  return different;
}

}  // namespace

int main(int argc, char** argv) {
  const int context = argc > 1 ? std::stoi(argv[1]) : 4096;
  Step s = make_step(context);
  std::printf("context %d, us a layer in a graph of %d layers\n", context, kLayers);
  for (int rows : {1, 8, 17, 33, 64}) {
    plan(s, rows);
    std::printf("%llu words differ; ", check(s));
    const auto time_attention = [&](int skipped = -1) {
      return lab::time_graph(
          [&](cudaStream_t stream) {
            for (const Layer& l : s.layers) attention_block(s, l, stream, skipped);
          },
          kLayers, 15);
    };
    const auto time_ffn = [&](Ffn form, int skipped = -1) {
      return lab::time_graph(
          [&](cudaStream_t stream) {
            reset(s, stream);
            for (const Layer& l : s.layers) ffn_block(s, l, stream, skipped, form);
          },
          kLayers, 15);
    };
    const float layer = lab::time_graph(
        [&](cudaStream_t stream) {
          reset(s, stream);
          for (const Layer& l : s.layers) {
            attention_block(s, l, stream, -1);
            ffn_block(s, l, stream, -1, Ffn::kFused);
          }
        },
        kLayers, 15);
    const float dense = time_ffn(Ffn::kDense), apart = time_ffn(Ffn::kApart),
                fused = time_ffn(Ffn::kFused);
    std::printf(
        "M = %2d: attention block %6.1f, FFN block %6.1f, fused %6.1f, "
        "without experts %6.1f; attention and fused FFN %6.1f\n",
        rows, time_attention(), apart, fused, dense, layer);
    std::fflush(stdout);
    if (argc > 2) {
      const char* const attention[] = {"norm", "qkv_a", "queries", "mla", "W_UV", "o_proj"};
      const char* const ffn[] = {"norm", "router", "route", "gate_up", "silu", "down", "experts"};
      const char* const ffn_fused[] = {"norm", "router and gate_up", "route and down", "experts"};
      std::printf("        adds:");
      const float whole = time_attention();
      for (int i = 0; i < 9; ++i) std::printf(" %s %.1f", attention[i], whole - time_attention(i));
      std::printf(" |");
      for (int i = 0; i < 7; ++i) std::printf(" %s %.1f", ffn[i], apart - time_ffn(Ffn::kApart, i));
      std::printf(" |");
      for (int i = 0; i < 4; ++i)
        std::printf(" %s %.1f", ffn_fused[i], fused - time_ffn(Ffn::kFused, i));
      std::printf("\n");
    }
    CHECK_CUDA(cudaFree(s.mla.workspace));
  }
}
