#include <cstring>

#include "backend/cpu/ops.h"
#include "backend/cpu/vector_math.h"

namespace coppice::cpu {
void embed(const EmbedArgs& args, ThreadPool& pool) {
  const std::int64_t size = args.out.row_size();
  COPPICE_CHECK_EQ(args.table.shape(1), size);
  const std::int32_t* const ids = args.token_ids.data<std::int32_t>();
  const bool is_bf16 = args.table.dtype() == DType::kBF16;
  pool.parallel_for(args.out.shape(0), kMinRowsPerThread,
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t t = begin; t < end; ++t) {
                        float* const out = args.out.row<float>(t);
                        COPPICE_CHECK_LT(ids[t], args.table.shape(0));
                        if (ids[t] < 0) {
                          std::memset(out, 0, static_cast<std::size_t>(size) * sizeof(float));
                        } else if (is_bf16) {
                          const bf16* const row = args.table.row<bf16>(ids[t]);
                          for (std::int64_t i = 0; i < size; ++i) out[i] = to_float(row[i]);
                        } else {
                          std::memcpy(out, args.table.row<float>(ids[t]),
                                      static_cast<std::size_t>(size) * sizeof(float));
                        }
                      }
                    });
}

void rms_norm(const RmsNormArgs& args, ThreadPool& pool) {
  const std::int64_t size = args.x.row_size();
  COPPICE_CHECK_EQ(args.weight.shape(0), size);
  COPPICE_CHECK_EQ(args.out.row_size(), size);
  const float* const weight = args.weight.data<float>();
  pool.parallel_for(args.x.shape(0), kMinRowsPerThread, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t)
      normalize(args.x.row<float>(t), weight, args.eps, size, args.out.row<float>(t));
  });
}

void add_rms_norm(const AddRmsNormArgs& args, ThreadPool& pool) {
  const std::int64_t size = args.residual.row_size();
  COPPICE_CHECK_EQ(args.delta.row_size(), size);
  COPPICE_CHECK_EQ(args.weight.shape(0), size);
  const float* const weight = args.weight.data<float>();
  pool.parallel_for(args.residual.shape(0), kMinRowsPerThread,
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t t = begin; t < end; ++t) {
                        float* const residual = args.residual.row<float>(t);
                        const float* const delta = args.delta.row<float>(t);
                        for (std::int64_t i = 0; i < size; ++i) residual[i] += delta[i];
                        normalize(residual, weight, args.eps, size, args.out.row<float>(t));
                      }
                    });
}

void silu_mul(const SiluMulArgs& args, ThreadPool& pool) {
  const std::int64_t size = args.out.row_size();
  COPPICE_CHECK_EQ(args.gate_up.row_size(), 2 * size);
  pool.parallel_for(args.out.shape(0), kMinRowsPerThread,
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t t = begin; t < end; ++t) {
                        const float* const gate = args.gate_up.row<float>(t);
                        const float* const up = gate + size;
                        float* const out = args.out.row<float>(t);
                        for (std::int64_t i = 0; i < size; ++i) out[i] = silu(gate[i]) * up[i];
                      }
                    });
}

void gather_rows(const GatherRowsArgs& args, ThreadPool& pool) {
  const std::size_t element = size_of(args.src.dtype());
  const std::size_t row_bytes = static_cast<std::size_t>(args.out.row_size()) * element;
  COPPICE_CHECK_EQ(args.src.row_size(), args.out.row_size());
  COPPICE_CHECK(args.src.dtype() == args.out.dtype(), args.src.describe(), args.out.describe());
  const std::int32_t* const rows = args.rows.data<std::int32_t>();
  pool.parallel_for(
      args.rows.shape(0), kMinRowsPerThread, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          if (rows[i] < 0) continue;
          std::memcpy(args.out.rows(i, 1).raw(), args.src.rows(rows[i], 1).raw(), row_bytes);
        }
      });
}

}  // namespace coppice::cpu
