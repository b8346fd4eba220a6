// Whole steps of a model on the CPU: one row, and the widths of tree verification.
//   bench_cpu_step MODEL [threads] [context] [device]
// Each step computes `rows` rows of one sequence at `context` and their logits. Best and median of
// the repetitions; the ratio to one row is what a tree must earn back.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "backend/factory/make_backend.h"
#include "base/error.h"
#include "model/load_model.h"

namespace {

using namespace coppice;

constexpr int kRepetitions = 40;
constexpr std::int64_t kMaxRows = 65;

Tensor ints(Backend& backend, std::vector<Buffer>& buffers,
            std::initializer_list<std::int64_t> shape, const std::vector<std::int32_t>& values) {
  buffers.push_back(backend.allocate(values.size() * 4));
  const Tensor tensor = buffers.back().tensor(DType::kI32, shape);
  backend.upload(tensor, values.data());
  return tensor;
}

// Rows at `context`, each the child of the one before: a chain under verification.
ForwardBatch chain(Backend& backend, std::vector<Buffer>& buffers, std::int64_t rows,
                   std::int64_t context, std::int64_t num_blocks) {
  std::vector<std::int32_t> tokens, positions, zeros, kv_len, path_len, path, table;
  for (std::int64_t i = 0; i < rows; ++i) {
    tokens.push_back(static_cast<std::int32_t>(100 + i * 37));
    positions.push_back(static_cast<std::int32_t>(context + i));
    zeros.push_back(0);
    kv_len.push_back(static_cast<std::int32_t>(context));
    path_len.push_back(static_cast<std::int32_t>(i + 1));
    for (std::int64_t j = 0; j < rows; ++j)
      path.push_back(static_cast<std::int32_t>(j <= i ? context + j : -1));
  }
  for (std::int64_t i = 0; i < num_blocks; ++i) table.push_back(static_cast<std::int32_t>(i));
  const Tensor position = ints(backend, buffers, {rows}, positions);
  return {.token_ids = ints(backend, buffers, {rows}, tokens),
          .positions = position,
          .slots = position,  // block i of the sequence is block i of the cache
          .attention = {.seq_of_row = ints(backend, buffers, {rows}, zeros),
                        .kv_len = ints(backend, buffers, {rows}, kv_len),
                        .path_len = ints(backend, buffers, {rows}, path_len),
                        .path = ints(backend, buffers, {rows, rows}, path),
                        .block_tables = ints(backend, buffers, {1, num_blocks}, table),
                        .max_kv_len = context + rows,
                        .provenance = Provenance::kDecided},
          .output_rows = {}};
}

int run(const std::string& path, int threads, std::int64_t context, const std::string& device) {
  const auto backend = make_backend({.device = device, .num_threads = threads});
  const auto model = load_model(*backend, path, {.max_rows = kMaxRows});
  const std::int64_t num_blocks = (context + kMaxRows) / kBlockSize + 1;
  PagedKvCache cache(*backend, model->kv_layout(), num_blocks);
  std::printf("%s, %s, context %ld\n%6s %12s %12s %10s %12s\n", backend->name().c_str(),
              path.c_str(), context, "rows", "best ms", "median ms", "to 1 row", "rows/s");
  double alone = 0;
  for (const std::int64_t rows : {1, 2, 4, 8, 17, 33, 65}) {
    std::vector<Buffer> buffers;
    const ForwardBatch batch = chain(*backend, buffers, rows, context, num_blocks);
    buffers.push_back(
        backend->allocate(static_cast<std::size_t>(rows * model->config().vocab_size) * 4));
    const Tensor logits = buffers.back().tensor(DType::kF32, {rows, model->config().vocab_size});
    std::vector<double> ms;
    for (int i = 0; i < kRepetitions; ++i) {
      const auto start = std::chrono::steady_clock::now();
      model->forward(batch, cache, logits, {});
      backend->synchronize();
      ms.push_back(
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
              .count());
    }
    std::sort(ms.begin(), ms.end());
    if (rows == 1) alone = ms.front();
    std::printf("%6ld %12.3f %12.3f %9.2fx %12.1f\n", rows, ms.front(), ms[ms.size() / 2],
                ms.front() / alone, 1e3 * static_cast<double>(rows) / ms.front());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench_cpu_step MODEL [threads] [context] [device]\n");
    return 2;
  }
  try {
    return run(argv[1], argc > 2 ? std::atoi(argv[2]) : 0, argc > 3 ? std::atol(argv[3]) : 64,
               argc > 4 ? argv[4] : "cpu");
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return exit_code(error.kind());
  }
}
