// Attention over the SIMD kernels; shapes that do not fill vectors of 16 take the reference ops.
#pragma once

#include "backend/cpu/simd/kernels.h"
#include "backend/op_args.h"
#include "base/thread_pool.h"

namespace coppice::cpu {

void fast_mla_attention(const simd::Kernels& kernels, const MlaAttentionArgs& args,
                        ThreadPool& pool);
void fast_gqa_attention(const simd::Kernels& kernels, const GqaAttentionArgs& args,
                        ThreadPool& pool);

}  // namespace coppice::cpu
