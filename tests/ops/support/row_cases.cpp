// embed, norms, silu_mul, all_reduce, gather_rows.
#include <limits>
#include <utility>

#include "tests/ops/support/staging.h"

namespace coppice::testing {
namespace {

std::vector<float> noise_vector(std::uint32_t stream, std::int64_t size, float scale, float shift) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < size; ++i) values.push_back(shift + scale * noise(stream, 0, i));
  return values;
}

std::vector<std::int32_t> int_rows(const std::vector<std::int64_t>& rows, std::int64_t modulus) {
  std::vector<std::int32_t> values;
  for (const std::int64_t id : rows)
    values.push_back(static_cast<std::int32_t>(id == kPadding ? -1 : id * 7 % modulus));
  return values;
}

RowResults run_embed(Backend& backend, const std::vector<std::int64_t>& rows, DType table_dtype) {
  constexpr std::int64_t kVocab = 61, kHidden = 72;
  Staging s(backend);
  const auto count = static_cast<std::int64_t>(rows.size());
  const std::vector<float> table = [] {
    std::vector<float> values;
    for (std::int64_t r = 0; r < kVocab; ++r)
      for (std::int64_t i = 0; i < kHidden; ++i) values.push_back(noise(1, r, i));
    return values;
  }();
  Tensor device_table = s.f32({kVocab, kHidden}, table);
  if (table_dtype == DType::kBF16) {
    std::vector<bf16> halves;
    for (const float value : table) halves.push_back(to_bf16(value));
    device_table =
        Tensor(device_table.raw(), DType::kBF16, {kVocab, kHidden}, device_table.device());
    backend.upload(device_table, halves.data());
  }
  const Tensor out = s.act_out(count, {kHidden});
  backend.embed(
      {.token_ids = s.ints({count}, int_rows(rows, kVocab)), .table = device_table, .out = out});
  RowResults results;
  s.collect(out, rows, results);
  return results;
}

RowResults run_rms_norm(Backend& backend, const std::vector<std::int64_t>& rows,
                        std::int64_t size) {
  Staging s(backend);
  const Tensor out = s.act_out(static_cast<std::int64_t>(rows.size()), {size});
  backend.rms_norm({.x = s.act_rows(1, rows, {size}, 3),
                    .weight = s.f32({size}, noise_vector(2, size, 0.5f, 1)),
                    .eps = 1e-5f,
                    .out = out});
  RowResults results;
  s.collect(out, rows, results);
  return results;
}

using AddNorm = void (Backend::*)(const AddRmsNormArgs&);
RowResults run_add_rms_norm(Backend& backend, const std::vector<std::int64_t>& rows,
                            std::int64_t size, AddNorm op) {
  Staging s(backend);
  const auto count = static_cast<std::int64_t>(rows.size());
  std::vector<float> residual;
  for (const std::int64_t id : rows)
    for (std::int64_t i = 0; i < size; ++i)
      residual.push_back(id == kPadding ? 0 : 2 * noise(1, id, i));
  // One guard row behind, as act_out leaves.
  residual.insert(residual.end(), static_cast<std::size_t>(size),
                  std::numeric_limits<float>::quiet_NaN());
  const Tensor padded = s.act({count + 1, size}, residual);
  const Tensor sum = padded.rows(0, count);
  const Tensor out = s.act_out(count, {size});
  (backend.*op)({.residual = sum,
                 .delta = s.act_rows(2, rows, {size}),
                 .weight = s.f32({size}, noise_vector(3, size, 0.5f, 1)),
                 .eps = 1e-6f,
                 .out = out});
  RowResults results;
  s.collect(out, rows, results);
  s.collect(sum, rows, results);
  return results;
}

RowResults run_silu_mul(Backend& backend, const std::vector<std::int64_t>& rows,
                        std::int64_t size) {
  Staging s(backend);
  const Tensor out = s.act_out(static_cast<std::int64_t>(rows.size()), {size});
  backend.silu_mul({.gate_up = s.act_rows(1, rows, {2 * size}, 12), .out = out});
  RowResults results;
  s.collect(out, rows, results);
  return results;
}

RowResults run_all_reduce(Backend& backend, const std::vector<std::int64_t>& rows) {
  Staging s(backend);
  const auto count = static_cast<std::int64_t>(rows.size());
  const Tensor out = s.act_out(count, {40});
  const Tensor source = s.act_rows(1, rows, {40});
  std::vector<std::int32_t> identity;
  for (std::int64_t i = 0; i < count; ++i) identity.push_back(static_cast<std::int32_t>(i));
  backend.gather_rows({.src = source, .rows = s.ints({count}, identity), .out = out});
  backend.all_reduce({.x = out});
  RowResults results;
  s.collect(out, rows, results);
  return results;
}

RowResults run_all_gather(Backend& backend, const std::vector<std::int64_t>& rows) {
  constexpr std::int64_t kSize = 40;
  Staging s(backend);
  const auto count = static_cast<std::int64_t>(rows.size());
  std::vector<float> values;
  for (const std::int64_t row : rows)
    for (std::int64_t i = 0; i < kSize; ++i)
      values.push_back(row == kPadding ? std::numeric_limits<float>::quiet_NaN()
                                       : noise(1, row, i));
  const Tensor out = s.f32_out(count, {kSize});
  backend.all_gather({.x = s.f32({count, kSize}, values), .out = out});
  RowResults results;
  s.collect(out, rows, results);
  return results;
}

RowResults run_gather_rows(Backend& backend, const std::vector<std::int64_t>& rows) {
  constexpr std::int64_t kSource = 19, kSize = 33;
  Staging s(backend);
  const auto count = static_cast<std::int64_t>(rows.size());
  std::vector<std::int64_t> all(kSource);
  for (std::int64_t i = 0; i < kSource; ++i) all[static_cast<std::size_t>(i)] = i;
  // Columns of a wider tensor: rows with gaps.
  const Tensor source = s.act_rows(1, all, {kSize + 7}).columns(3, kSize);
  const Tensor out = s.act_out(count, {kSize});
  backend.gather_rows(
      {.src = source, .rows = s.ints({count}, int_rows(rows, kSource)), .out = out});
  RowResults results;
  s.collect(out, rows, results);
  return results;
}

}  // namespace

void add_row_cases(std::vector<OpCase>& cases) {
  const auto add = [&](std::string op, std::string name, float fast, float half, auto run) {
    cases.push_back({std::move(op), std::move(name), fast, half, run});
  };
  using Rows = std::vector<std::int64_t>;
  for (const DType table : {DType::kF32, DType::kBF16})
    add("embed", coppice::name_of(table), 0, 4e-3f,
        [table](Backend& b, const Rows& r) { return run_embed(b, r, table); });
  for (const std::int64_t size : {15, 16, 72, 576, 7168}) {
    const std::string name = std::to_string(size);
    add("rms_norm", name, 1e-6f, 1e-2f,
        [size](Backend& b, const Rows& r) { return run_rms_norm(b, r, size); });
    add("add_rms_norm", name, 1e-6f, 1e-2f, [size](Backend& b, const Rows& r) {
      return run_add_rms_norm(b, r, size, &Backend::add_rms_norm);
    });
    add("silu_mul", name, 1e-6f, 1e-2f,
        [size](Backend& b, const Rows& r) { return run_silu_mul(b, r, size); });
  }
  add("all_reduce", "one rank", 0, 0, run_all_reduce);
  add("sum_add_rms_norm", "one rank", 1e-6f, 1e-2f, [](Backend& b, const Rows& r) {
    return run_add_rms_norm(b, r, 72, &Backend::sum_add_rms_norm);
  });
  add("all_gather", "one rank", 0, 0, run_all_gather);
  add("gather_rows", "with gaps", 0, 0, run_gather_rows);
}

}  // namespace coppice::testing
