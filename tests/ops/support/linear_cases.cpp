// linear and head_linear in every weight format.
#include <memory>

#include "tests/ops/support/staging.h"

namespace coppice::testing {
namespace {

constexpr WeightFormat kFormats[] = {
    WeightFormat::kF32,         WeightFormat::kF16,  WeightFormat::kBF16, WeightFormat::kF8Block128,
    WeightFormat::kInt4Group32, WeightFormat::kQ4_0, WeightFormat::kQ4_1, WeightFormat::kQ8_0};

struct Size {
  std::int64_t in, out;
};

// Formats whose activations a fast CPU path rounds to int8 per group of 32.
bool rounds_activations(WeightFormat format) {
  return format == WeightFormat::kQ4_0 || format == WeightFormat::kQ4_1 ||
         format == WeightFormat::kQ8_0;
}

// Two stacked parts; x is a column range of a wider tensor.
RowResults run_linear(Backend& backend, const std::vector<std::int64_t>& rows, WeightFormat format,
                      Size size, Provenance provenance = Provenance::kDecided) {
  Staging s(backend);
  const RandomMatrix& first = random_matrix(format, size.out / 2, size.in, 10);
  const RandomMatrix& second = random_matrix(format, size.out - size.out / 2, size.in, 20);
  const HostMatrix parts[] = {first.view(), second.view()};
  const LinearWeight weight = backend.load_linear(parts);
  const auto count = static_cast<std::int64_t>(rows.size());
  const Tensor x = s.act_rows(1, rows, {size.in + 8}, 2).columns(8, size.in);
  const Tensor out = s.f32_out(count, {size.out});
  backend.linear({.x = x, .weight = &weight, .out = out, .provenance = provenance});
  RowResults results;
  s.collect(out, rows, results);
  return results;
}

struct HeadSize {
  std::int64_t heads, k, n;
};

RowResults run_head_linear(Backend& backend, const std::vector<std::int64_t>& rows,
                           WeightFormat format, HeadSize size,
                           Provenance provenance = Provenance::kDecided) {
  Staging s(backend);
  const HostMatrix part = random_matrix(format, size.heads * size.n, size.k, 10).view();
  const LinearWeight weight = backend.load_linear({&part, 1});
  const Tensor out = s.act_out(static_cast<std::int64_t>(rows.size()), {size.heads, size.n});
  backend.head_linear({.x = s.act_rows(1, rows, {size.heads, size.k}),
                       .weight = &weight,
                       .out = out,
                       .provenance = provenance});
  RowResults results;
  s.collect(out, rows, results);
  return results;
}

std::string text(std::initializer_list<std::int64_t> sizes) {
  std::string result;
  for (const std::int64_t size : sizes)
    result += (result.empty() ? "" : "x") + std::to_string(size);
  return result;
}

}  // namespace

void add_linear_cases(std::vector<OpCase>& cases) {
  using Rows = std::vector<std::int64_t>;
  for (const WeightFormat format : kFormats) {
    // INT4 activations are int16 with one scale per group.
    const float fast = rounds_activations(format)             ? 4e-2f
                       : format == WeightFormat::kInt4Group32 ? 1e-4f
                                                              : 2e-5f;
    for (const Size size : {Size{32, 16}, Size{96, 37}, Size{384, 160}, Size{1536, 48}})
      cases.push_back(
          {"linear", std::string(name_of(format)) + ' ' + text({size.in, size.out}), fast, 2e-2f,
           [format, size](Backend& b, const Rows& r) { return run_linear(b, r, format, size); }});
  }
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBF16})
    cases.push_back({"linear", std::string(name_of(format)) + " odd", 2e-5f, 2e-2f,
                     [format](Backend& b, const Rows& r) {
                       return run_linear(b, r, format, {51, 19});
                     }});
  for (const Size size : {Size{384, 160}, Size{1536, 48}, Size{1024, 320}, Size{128, 2048}})
    cases.push_back({"linear", "bf16 prompt " + text({size.in, size.out}), 2e-5f, 2e-2f,
                     [size](Backend& b, const Rows& r) {
                       return run_linear(b, r, WeightFormat::kBF16, size, Provenance::kPrompt);
                     }});
  for (const HeadSize size : {HeadSize{8, 128, 512}, HeadSize{3, 64, 48}})
    cases.push_back({"head_linear", "bf16 prompt " + text({size.heads, size.k, size.n}), 2e-5f,
                     2e-2f, [size](Backend& b, const Rows& r) {
                       return run_head_linear(b, r, WeightFormat::kBF16, size, Provenance::kPrompt);
                     }});
  for (const HeadSize size : {HeadSize{8, 32, 128}, HeadSize{8, 128, 32}, HeadSize{3, 18, 20}})
    cases.push_back({"head_linear", "bf16 " + text({size.heads, size.k, size.n}), 2e-5f, 2e-2f,
                     [size](Backend& b, const Rows& r) {
                       return run_head_linear(b, r, WeightFormat::kBF16, size);
                     }});
  cases.push_back({"head_linear", "q8_0 4x64x32", 4e-2f, 2e-2f, [](Backend& b, const Rows& r) {
                     return run_head_linear(b, r, WeightFormat::kQ8_0, {4, 64, 32});
                   }});
}

}  // namespace coppice::testing
