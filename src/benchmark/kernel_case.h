// One row of the kernel benchmark: inputs made on the device, an op or a block of them to enqueue,
// and a check of its output that comes before any timing.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/device_meter.h"
#include "io/json.h"

namespace coppice {

// Where a case is built: the device under test, or the CPU reference that it is compared with.
// Owns what the case allocates. Contents follow from seeds alone, so that both sides hold the same.
class BenchSide {
 public:
  BenchSide(Backend& backend, DeviceMeter& meter) : backend_(backend), meter_(meter) {}

  Backend& backend() { return backend_; }
  DeviceMeter& meter() { return meter_; }

  // Uniform in (-amplitude, amplitude). Activations and keys are rounded to bf16 whatever their
  // type.
  Tensor act(std::initializer_list<std::int64_t> shape, std::uint64_t seed, float amplitude = 1);
  Tensor f32(std::initializer_list<std::int64_t> shape, std::uint64_t seed, float amplitude = 1);
  // Nearly normal with the given deviation.
  Tensor logits(DType dtype, std::initializer_list<std::int64_t> shape, std::uint64_t seed,
                float deviation);
  Tensor kv(std::initializer_list<std::int64_t> shape, std::uint64_t seed);
  // Random keys into existing memory.
  void fill_kv(const Tensor& tensor, std::uint64_t seed);
  Tensor zeros(DType dtype, std::initializer_list<std::int64_t> shape);
  Tensor ints(std::initializer_list<std::int64_t> shape, const std::vector<std::int32_t>& values);
  Tensor floats(std::initializer_list<std::int64_t> shape, const std::vector<float>& values);

  // Downloaded and widened, row by row where they have gaps; waits.
  std::vector<float> read(const Tensor& tensor);

 private:
  std::vector<float> read_dense(const Tensor& tensor);
  void round_to_bf16(const Tensor& tensor);

  Backend& backend_;
  DeviceMeter& meter_;
  std::deque<Buffer> buffers_;
};

// A case ready to run on one side.
struct BuiltCase {
  std::int64_t max_calls = 1000;  // in a replay: what a case that advances its own state allows
  std::int64_t num_copies = 1;    // of weights or cache; calls rotate over them
  std::function<void(std::int64_t)> run;  // enqueues one call on copy i
  std::vector<Tensor> outputs = {};       // of copy 0, compared with the reference's
  double bytes = 0, flops = 0;            // of one call
  double first_bytes = 0;                 // of copy 0 where calls differ; 0: as all
  std::shared_ptr<void> keep = nullptr;   // owns weights
};

struct KernelCase {
  std::string key;     // unique; bench/peers uses the same
  std::string kernel;  // op of backend.h, or the name of a block
  Json shape;
  double bound = 2e-2;  // largest error allowed, over the largest magnitude of an output row
  std::function<BuiltCase(BenchSide&)> build;
  // The first output is a choice that rounding may turn: rows that chose otherwise than the
  // reference are left out, at most a quarter of them.
  bool chooses = false;
  // The error of copy 0's output on the device; empty: build on the reference and compare all.
  std::function<double(BenchSide&, const BuiltCase&)> error = {};
};

// Copies that together hold several times a GPU's L2; 1 on a CPU.
std::int64_t copies_past_cache(BenchSide& side, double bytes);

// The largest difference over the largest magnitude of the row; infinity where a value is not
// finite on one side only.
double row_error(const std::vector<float>& values, const std::vector<float>& expected,
                 std::int64_t row_size);

// The layers whose kernels are timed: Kimi K2.6 as one rank of so many holds it, or the small model
// in models/ for CPUs.
struct NetworkShape {
  std::string name;  // "tp1", "tp8", "tiny"
  std::int64_t hidden_size = 7168;
  std::int64_t num_heads = 64;
  std::int64_t q_lora_rank = 1536, kv_lora_rank = 512;
  std::int64_t nope_dim = 128, rope_dim = 64, v_head_dim = 128;
  std::int64_t n_routed_experts = 384, num_experts_per_tok = 8;
  std::int64_t moe_intermediate_size = 2048, intermediate_size = 18432;
  std::int64_t vocab_size = 163840;
};
NetworkShape kimi_k2_shape(std::int64_t num_ranks);
NetworkShape tiny_shape();

// The families (*_cases.cpp), appended.
void add_dense_cases(std::vector<KernelCase>& cases, const NetworkShape& network);
void add_expert_cases(std::vector<KernelCase>& cases, const NetworkShape& network);
void add_attention_cases(std::vector<KernelCase>& cases, const NetworkShape& network);
void add_gqa_cases(std::vector<KernelCase>& cases, const NetworkShape& network);
void add_row_cases(std::vector<KernelCase>& cases, const NetworkShape& network);
void add_round_cases(std::vector<KernelCase>& cases, const NetworkShape& network);
void add_block_cases(std::vector<KernelCase>& cases, const NetworkShape& network);

// The project's target of a case, microseconds on one H200; 0: none.
double target_us(const std::string& key);

}  // namespace coppice
