// top_k_log_probs, merge_top_k and sample_greedy against the host.
#include <cuda_bf16.h>

#include <cstring>
#include <random>

#include "kernels/sample/sample_greedy.h"
#include "kernels/sample/top_k_log_probs.h"
#include "tests/kernels/support/device_array.h"
#include "tests/kernels/support/tree_checks.h"
#include "tests/kernels/support/tree_reference.h"

namespace coppice::kernels::checks {
namespace {

float round_bf16(float x) {
  return __bfloat162float(__float2bfloat16(x));
}

enum class Fill { kNormal, kTies, kEqual, kSorted, kPeaked, kMasked, kNan };

std::vector<float> make_row(Fill fill, int n, std::mt19937& rng) {
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> row(n);
  for (int i = 0; i < n; ++i) {
    switch (fill) {
      case Fill::kNormal:
        row[i] = normal(rng);
        break;
      case Fill::kTies:
        row[i] = static_cast<float>(static_cast<int>(rng() % 7)) - 3.0f;
        break;
      case Fill::kEqual:
        row[i] = 1.25f;
        break;
      case Fill::kSorted:
        row[i] = 20.0f - static_cast<float>(i) * 1e-3f;
        break;
      case Fill::kPeaked:
        row[i] = normal(rng) + (rng() % 4096 == 0 ? 25.0f : 0.0f);
        break;
      case Fill::kMasked:
        row[i] = rng() % 3 == 0 ? normal(rng) : -INFINITY;
        break;
      case Fill::kNan:
        row[i] = rng() % 50 == 0 ? NAN : normal(rng);
        break;
    }
  }
  if (fill == Fill::kNan) row[n / 2] = INFINITY;
  if (fill == Fill::kTies) row[n / 3] = -0.0f;
  return row;
}

struct Result {
  std::vector<int32_t> ids;
  std::vector<float> log_probs, lse;
};

Result run_top_k(const std::vector<std::vector<float>>& rows, int first, int last, int k, bool bf16,
                 int offset = 0, bool keep_logits = false) {
  const int count = last - first;
  const int n = static_cast<int>(rows[0].size());
  std::vector<float> flat;
  std::vector<__nv_bfloat16> narrow;
  for (int r = first; r < last; ++r) {
    for (float x : rows[r]) {
      flat.push_back(x);
      narrow.push_back(__float2bfloat16(x));
    }
  }
  DeviceArray<float> wide_logits(bf16 ? std::vector<float>(1) : flat);
  DeviceArray<__nv_bfloat16> narrow_logits(bf16 ? narrow : std::vector<__nv_bfloat16>(1));
  DeviceArray<int32_t> ids(static_cast<size_t>(count) * k);
  DeviceArray<float> log_probs(static_cast<size_t>(count) * k), lse(count);
  DeviceArray<char> workspace(top_k_log_probs_workspace_bytes(count, n), 0xFF);
  CHECK_CUDA(cudaMemset(workspace.get(), 0, static_cast<size_t>(count) * 4));
  TopKLogProbsParams params;
  params.logits = bf16 ? static_cast<const void*>(narrow_logits.get()) : wide_logits.get();
  params.logits_are_bf16 = bf16;
  params.keep_logits = keep_logits;
  params.row_stride = n;
  params.num_rows = params.max_rows = count;
  params.vocab_size = n;
  params.vocab_offset = offset;
  params.k = k;
  params.ids = ids.get();
  params.log_probs = log_probs.get();
  params.log_sum_exp = lse.get();
  params.workspace = workspace.get();
  CHECK_CUDA(top_k_log_probs(params, nullptr));
  CHECK_CUDA(top_k_log_probs(params, nullptr));  // counters were left zero
  return {ids.host(), log_probs.host(), lse.host()};
}

// few: every fourth row alone, instead of every row.
int check_shape(int n, int k, bool bf16, bool few, std::mt19937& rng) {
  std::vector<std::vector<float>> rows;
  for (Fill fill : {Fill::kNormal, Fill::kTies, Fill::kEqual, Fill::kSorted, Fill::kPeaked,
                    Fill::kMasked, Fill::kNan, Fill::kNormal, Fill::kPeaked}) {
    rows.push_back(make_row(fill, n, rng));
    if (bf16) {
      for (float& x : rows.back()) x = round_bf16(x);
    }
  }
  const int count = static_cast<int>(rows.size());
  const Result all = run_top_k(rows, 0, count, k, bf16);
  int failures = 0;
  double worst = 0;
  for (int r = 0; r < count; ++r) {
    const TopK expected = reference_top_k(rows[r], k);
    for (int i = 0; i < k; ++i) {
      const bool inside = i < static_cast<int>(expected.ids.size());
      const int id = inside ? expected.ids[i] : -1;
      const double value = inside ? expected.log_probs[i] : -INFINITY;
      const float got = all.log_probs[r * k + i];
      if (all.ids[r * k + i] != id) ++failures;
      if (std::isinf(value) ? got != value
                            : !(std::abs(got - value) < 2e-5 + 1e-6 * std::abs(value)))
        ++failures;
      if (std::isfinite(value) && std::abs(value) < 100)
        worst = std::max(worst, std::abs(got - value));
    }
    if (few && r % 4 != 0) continue;
    const Result alone = run_top_k(rows, r, r + 1, k, bf16);
    failures += std::memcmp(alone.ids.data(), &all.ids[r * k], k * 4) != 0;
    failures += std::memcmp(alone.log_probs.data(), &all.log_probs[r * k], k * 4) != 0;
  }
  std::printf("top_k V=%d k=%d %s: %d failures, worst log-prob error %.2g\n", n, k,
              bf16 ? "bf16" : "fp32", failures, worst);
  return failures;
}

int check_shards(int n, std::mt19937& rng) {
  const int shards = 8, k = 33, count = 3;
  std::vector<std::vector<float>> rows;
  for (Fill fill : {Fill::kNormal, Fill::kTies, Fill::kEqual})
    rows.push_back(make_row(fill, n, rng));
  std::vector<int32_t> ids;
  std::vector<float> logits, lse;
  for (int s = 0; s < shards; ++s) {
    std::vector<std::vector<float>> part;
    for (const auto& row : rows) {
      part.emplace_back(row.begin() + s * (n / shards), row.begin() + (s + 1) * (n / shards));
    }
    const Result result = run_top_k(part, 0, count, k, false, s * (n / shards), true);
    ids.insert(ids.end(), result.ids.begin(), result.ids.end());
    logits.insert(logits.end(), result.log_probs.begin(), result.log_probs.end());
    lse.insert(lse.end(), result.lse.begin(), result.lse.end());
  }
  DeviceArray<int32_t> in_ids(ids), out_ids(static_cast<size_t>(count) * k);
  DeviceArray<float> in_logits(logits), in_lse(lse), out(static_cast<size_t>(count) * k);
  CHECK_CUDA(merge_top_k(
      {in_ids.get(), in_logits.get(), in_lse.get(), shards, count, k, out_ids.get(), out.get()},
      nullptr));
  const auto got_ids = out_ids.host();
  const auto got = out.host();
  int failures = 0;
  for (int r = 0; r < count; ++r) {
    const TopK expected = reference_top_k(rows[r], k);
    for (int i = 0; i < k; ++i) {
      failures += got_ids[r * k + i] != expected.ids[i];
      failures += !(std::abs(got[r * k + i] - expected.log_probs[i]) < 2e-5);
    }
  }
  std::printf("top_k 8 shards of %d: %d failures\n", n, failures);
  return failures;
}

int check_greedy(int n, std::mt19937& rng) {
  std::vector<std::vector<float>> rows;
  for (Fill fill : {Fill::kNormal, Fill::kTies, Fill::kEqual, Fill::kSorted, Fill::kPeaked,
                    Fill::kNan, Fill::kMasked}) {
    rows.push_back(make_row(fill, n, rng));
  }
  rows.push_back(std::vector<float>(n, NAN));
  const int count = static_cast<int>(rows.size());
  std::vector<float> flat;
  for (const auto& row : rows) flat.insert(flat.end(), row.begin(), row.end());
  std::vector<int32_t> seqs(count, 0);
  seqs[count - 1] = -1;
  DeviceArray<float> logits(flat);
  DeviceArray<int32_t> seq_of_row(seqs), choices(count), finite(count);
  DeviceArray<char> workspace(sample_greedy_workspace_bytes(count), 0);
  SampleGreedyParams params{
      logits.get(),   n, seq_of_row.get(), count, n, count, choices.get(), finite.get(),
      workspace.get()};
  CHECK_CUDA(sample_greedy(params, nullptr));
  CHECK_CUDA(sample_greedy(params, nullptr));
  const auto got = choices.host();
  const auto got_finite = finite.host();
  int failures = got[count - 1] != -1 || got_finite[count - 1] != 1;
  for (int r = 0; r + 1 < count; ++r) {
    int best = -1;
    bool fine = true;
    for (int i = 0; i < n; ++i) {
      fine = fine && std::isfinite(rows[r][i]);
      if (std::isnan(rows[r][i])) continue;
      if (best < 0 || rows[r][i] > rows[r][best]) best = i;
    }
    failures += got[r] != (fine ? best : -1);
    failures += got_finite[r] != static_cast<int>(fine);
  }
  std::printf("greedy V=%d: %d failures\n", n, failures);
  return failures;
}

}  // namespace

int check_top_k(bool quick) {
  std::mt19937 rng(1);
  int failures = 0;
  for (int n : quick ? std::vector<int>{5376} : std::vector<int>{8, 1024, 5376, 20480, 163840}) {
    for (int k : n > 20480 ? std::vector<int>{64}
                 : quick   ? std::vector<int>{1, 64}
                           : std::vector<int>{1, 7, 64}) {
      failures += check_shape(n, k, true, quick, rng);
      failures += check_shape(n, k, false, quick, rng);
    }
    failures += check_greedy(n, rng);
  }
  return failures + check_shards(quick ? 10752 : 163840, rng);
}

}  // namespace coppice::kernels::checks
