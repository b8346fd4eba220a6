// Dense products of prompt rows through cuBLASLt, which is found at run time.
//
// One algorithm per weight shape and output type, without a split of the inputs: a row's bits do
// not depend on how many rows a prompt chunk has.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>

namespace coppice {

// out[t, h] = weight[h] x[t, h].
struct LtProduct {
  const void* x = nullptr;       // bf16 [tokens, heads, inputs]
  const void* weight = nullptr;  // bf16 [heads, outputs, inputs]
  void* out = nullptr;           // bf16 or fp32 [tokens, heads, outputs]
  std::int64_t tokens = 0;
  std::int64_t heads = 1;
  std::int64_t outputs = 0;     // a multiple of 8
  std::int64_t inputs = 0;      // a multiple of 8
  std::int64_t x_stride = 0;    // elements between tokens, a multiple of 8
  std::int64_t out_stride = 0;  // elements between tokens, a multiple of 8
  bool out_is_f32 = false;
};

class CublasLt {
 public:
  // Null when the machine has no cuBLASLt of the toolkit's major version.
  static std::unique_ptr<CublasLt> load();
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  // Enqueues. False, and nothing is enqueued, for a shape without an algorithm that fits the rule
  // above; the answer depends on the shape alone. Throws Error(kUnavailable) when cuBLASLt fails.
  bool multiply(const LtProduct& product, cudaStream_t stream);
  // Whether a product of this shape was enqueued before: the first one loads its kernel.
  bool knows(const LtProduct& product) const { return plans_.contains(shape_of(product)); }

  // As cuBLASLt numbers itself, e.g. 130100.
  std::size_t version() const { return version_; }

 private:
  struct Functions;
  struct Plan;
  using Shape = std::tuple<std::int64_t, std::int64_t, std::int64_t, bool>;
  static Shape shape_of(const LtProduct& product) {
    return {product.heads, product.outputs, product.inputs, product.out_is_f32};
  }

  CublasLt(std::unique_ptr<const Functions> functions, cublasLtHandle_t handle);
  const Plan& plan(const LtProduct& product);

  std::unique_ptr<const Functions> functions_;
  cublasLtHandle_t handle_;
  std::size_t version_;
  std::map<Shape, std::unique_ptr<const Plan>> plans_;  // by heads, outputs, inputs, fp32 output
};

}  // namespace coppice
