// Features that the drafter has not taken in yet: those of tokens decided while nothing was
// drafted. They are projected to keys and values when the drafter is wanted again, in one piece,
// or never where it is not.
#pragma once

#include "backend/backend.h"
#include "cache/paged_kv_cache.h"
#include "model/dflash_model.h"

namespace coppice {

class ContextBacklog {
 public:
  // max_step: rows of the largest step that adds or is projected at once.
  ContextBacklog(Backend& backend, std::int64_t feature_size, std::int64_t max_step);

  std::int64_t size() const { return size_; }
  bool has_room(std::int64_t rows) const { return size_ + rows <= positions_.shape(0); }
  // Enqueues copies. features [T, feature_size] act; positions, slots [T] i32, -1: padding.
  void add(const Tensor& features, const Tensor& positions, const Tensor& slots);
  // Enqueues the projection of all rows into `cache`; afterwards it is empty.
  void project(DflashModel& model, PagedKvCache& cache);
  void drop() { size_ = 0; }

 private:
  Backend& backend_;
  std::int64_t max_step_, size_ = 0;
  Buffer feature_buffer_, number_buffer_;
  Tensor features_;           // [capacity, feature_size] act
  Tensor positions_, slots_;  // [capacity] i32
  Tensor all_rows_;           // [max_step] i32: 0, 1, 2, ...
};

}  // namespace coppice
