// Loads single weights: fetches, slices for this rank, hands to the backend, counts progress.
#pragma once

#include <deque>
#include <initializer_list>
#include <string>

#include "backend/backend.h"
#include "io/checkpoint.h"
#include "model/host_matrix.h"
#include "model/parallel_config.h"
#include "model/weight_source.h"

namespace coppice {

// How a matrix is split over ranks: not, by output rows, or by input columns (the sum over ranks is
// then the result).
enum class Split { kNone, kRows, kCols };

// This rank's part, a view or a copy in `storage`.
HostMatrix shard_matrix(const HostMatrix& whole, Split split, const ParallelConfig& parallel,
                        const std::string& name, HostStorage& storage);

class WeightReader {
 public:
  WeightReader(Backend& backend, WeightSource& source, const ParallelConfig& parallel,
               const ProgressCallback& progress, std::int64_t total_bytes)
      : backend_(backend),
        source_(source),
        parallel_(parallel),
        progress_(progress),
        total_bytes_(total_bytes) {}

  // This rank's part in the stored format; valid until release().
  HostMatrix matrix(const WeightSpec& spec, Split split);
  std::optional<RepackedExperts> repacked_experts(const std::string& prefix);
  // The parts stacked along rows.
  LinearWeight linear(std::initializer_list<WeightSpec> specs, Split split);
  LinearWeight linear(const std::vector<HostMatrix>& parts);
  // [rows] f32, on the device.
  Tensor vector(const WeightSpec& spec);
  // [vocab_size, hidden_size] bf16 where stored so, else f32, on the device.
  Tensor embedding(const WeightSpec& spec);

  Backend& backend() { return backend_; }
  WeightSource& source() { return source_; }
  HostStorage& storage() { return storage_; }
  const ParallelConfig& parallel() const { return parallel_; }
  // Frees host copies; matrices handed out so far are no longer used.
  void release();
  // Device memory behind the tensors handed out.
  std::deque<Buffer> take_buffers() { return std::move(buffers_); }

 private:
  void count(std::size_t num_bytes);

  Backend& backend_;
  WeightSource& source_;
  ParallelConfig parallel_;
  const ProgressCallback& progress_;
  std::int64_t total_bytes_ = 0;
  std::int64_t done_bytes_ = 0;
  HostStorage storage_;
  std::deque<Buffer> buffers_;
};

}  // namespace coppice
