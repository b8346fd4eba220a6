#include "engine/scheduler.h"

#include <algorithm>

namespace coppice {
namespace {

using SequenceList = std::vector<std::unique_ptr<Sequence>>;

void insert_by_arrival(SequenceList& list, std::unique_ptr<Sequence> sequence) {
  const auto place = std::find_if(list.begin(), list.end(),
                                  [&](const auto& other) { return other->id > sequence->id; });
  list.insert(place, std::move(sequence));
}

std::unique_ptr<Sequence> take(SequenceList& list, const Sequence& sequence) {
  const auto it = std::find_if(list.begin(), list.end(),
                               [&](const auto& other) { return other.get() == &sequence; });
  if (it == list.end()) return nullptr;
  std::unique_ptr<Sequence> taken = std::move(*it);
  list.erase(it);
  return taken;
}

}  // namespace

Scheduler::Scheduler(const SchedulerLimits& limits, BlockAllocator& allocator, PrefixIndex& index,
                     std::function<void(std::int64_t)> on_vacate)
    : limits_(limits),
      allocator_(allocator),
      index_(index),
      on_vacate_(std::move(on_vacate)),
      places_(static_cast<std::size_t>(limits.max_num_seqs), nullptr) {}

void Scheduler::add(std::unique_ptr<Sequence> sequence) {
  insert_by_arrival(waiting_, std::move(sequence));
}

Sequence* Scheduler::find(RequestId id) const {
  for (const SequenceList* list : {&running_, &waiting_})
    for (const auto& sequence : *list)
      if (sequence->id == id) return sequence.get();
  return nullptr;
}

Sequence* Scheduler::first() {
  if (!running_.empty()) return running_.front().get();
  return waiting_.empty() ? nullptr : waiting_.front().get();
}

void Scheduler::vacate(Sequence& sequence) {
  if (sequence.place >= 0) {
    on_vacate_(sequence.place);
    places_[static_cast<std::size_t>(sequence.place)] = nullptr;
    sequence.place = -1;
    ++sequence.num_places;
  }
  sequence.table.release();
  sequence.num_computed = 0;
  sequence.num_indexed_blocks = 0;
}

void Scheduler::remove(Sequence& sequence) {
  vacate(sequence);
  sequence.state = SequenceState::kFinished;
  if (!take(running_, sequence)) take(waiting_, sequence);
}

void Scheduler::preempt(Sequence& sequence) {
  vacate(sequence);
  sequence.state = SequenceState::kWaiting;
  ++sequence.stats.num_preemptions;
  ++num_preemptions_;
  if (auto taken = take(running_, sequence)) insert_by_arrival(waiting_, std::move(taken));
}

bool Scheduler::try_admit(Sequence& sequence) {
  const auto place = std::find(places_.begin(), places_.end(), nullptr);
  if (place == places_.end()) return false;
  const std::int64_t target = sequence.prefill_target();
  if (limits_.prefix_caching && !sequence.scores_prompt()) {
    // At least one row is left to compute where its choice is wanted. Exact sharing ends with the
    // prompt: decided tokens come from decode ops only.
    const bool fresh = sequence.num_output() == 0;
    const std::int64_t most = fresh                        ? sequence.prompt_len - 1
                              : limits_.prefix_cache_exact ? sequence.prompt_len
                                                           : target;
    sequence.table.adopt(index_.match(sequence.tokens, most, sequence.request.cache_salt,
                                      limits_.prefix_cache_exact));
  }
  const std::int64_t cached = sequence.table.num_positions();
  // Others keep room to grow, or the newcomer would be preempted at once.
  const bool fits = sequence.table.reserve(target + limits_.reserve) &&
                    (running_.empty() || allocator_.num_available() >= num_running());
  if (!fits) {
    sequence.table.release();
    return false;
  }
  sequence.num_computed = cached;
  sequence.num_indexed_blocks = cached / kBlockSize;
  if (sequence.num_output() == 0) sequence.stats.num_cached_tokens = cached;
  sequence.state = cached == target ? SequenceState::kDecode : SequenceState::kPrefill;
  sequence.place = place - places_.begin();
  sequence.place_changed = true;
  *place = &sequence;
  return true;
}

void Scheduler::admit() {
  while (!waiting_.empty() && try_admit(*waiting_.front())) {
    auto sequence = take(waiting_, *waiting_.front());
    insert_by_arrival(running_, std::move(sequence));
  }
}

StepPlan Scheduler::plan() {
  admit();
  const auto any = [&](SequenceState state) {
    return std::any_of(running_.begin(), running_.end(),
                       [&](const auto& sequence) { return sequence->state == state; });
  };
  StepPlan plan;
  const bool prefill = any(SequenceState::kPrefill), decode = any(SequenceState::kDecode);
  if (prefill && !(decode && last_was_prefill_))
    plan_prefill(plan);
  else if (decode)
    plan_decode(plan);
  last_was_prefill_ = plan.kind == StepPlan::Kind::kPrefill;
  plan.batch = batch();
  return plan;
}

bool Scheduler::is_steady() const {
  const bool admits = !waiting_.empty() && num_running() < std::ssize(places_);
  if (running_.empty() || admits || batch() != num_running()) return false;
  std::int64_t missing = 0;
  for (const auto& sequence : running_) {
    if (sequence->state != SequenceState::kDecode || sequence->place_changed) return false;
    const std::int64_t positions = sequence->num_computed + limits_.reserve;
    missing += std::max<std::int64_t>(
        0, (positions + kBlockSize - 1) / kBlockSize - std::ssize(sequence->table.blocks()));
  }
  return missing <= allocator_.num_available();
}

void Scheduler::plan_prefill(StepPlan& plan) {
  plan.kind = StepPlan::Kind::kPrefill;
  std::int64_t room = limits_.max_num_batched_tokens, scored_room = kMaxScoredRows;
  for (const auto& sequence : running_) {
    if (sequence->state != SequenceState::kPrefill || room == 0) continue;
    const bool prompt = sequence->num_computed < sequence->prompt_len;
    const Provenance provenance = prompt ? Provenance::kPrompt : Provenance::kDecided;
    if (plan.chunks.empty()) plan.provenance = provenance;
    if (provenance != plan.provenance) continue;
    const std::int64_t end = prompt ? sequence->prompt_len : sequence->prefill_target();
    const bool scores = prompt && sequence->scores_prompt();
    if (scores && scored_room == 0) continue;
    const std::int64_t count =
        std::min({room, scores ? scored_room : room, end - sequence->num_computed});
    // The last prompt token has none behind it.
    const std::int64_t num_scored =
        scores ? std::min(count, sequence->prompt_len - 1 - sequence->num_computed) : 0;
    scored_room -= num_scored;
    plan.chunks.push_back({.sequence = sequence.get(),
                           .begin = sequence->num_computed,
                           .count = count,
                           .samples = prompt && sequence->num_output() == 0 &&
                                      sequence->num_computed + count == sequence->prompt_len,
                           .num_scored = num_scored});
    room -= count;
  }
}

bool Scheduler::reserve_or_preempt(Sequence& sequence) {
  while (!sequence.table.reserve(sequence.num_computed + limits_.reserve)) {
    Sequence& newest = *running_.back();
    preempt(newest);
    if (&newest == &sequence) return false;
  }
  return true;
}

void Scheduler::plan_decode(StepPlan& plan) {
  // Preemption removes from the back, so earlier elements stay where they are.
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.state != SequenceState::kDecode || !reserve_or_preempt(sequence)) continue;
    plan.decoding.push_back(&sequence);
  }
  if (!plan.decoding.empty()) plan.kind = StepPlan::Kind::kDecode;
  close_gaps();
}

// Moves sequences from the last places into empty ones, so that a batch has few idle places.
void Scheduler::close_gaps() {
  for (std::int64_t last = batch() - 1; last > 0; last = batch() - 1) {
    const auto gap = std::find(places_.begin(), places_.end(), nullptr);
    if (gap - places_.begin() > last) return;
    Sequence* sequence = places_[static_cast<std::size_t>(last)];
    on_vacate_(last);
    places_[static_cast<std::size_t>(last)] = nullptr;
    *gap = sequence;
    sequence->place = gap - places_.begin();
    sequence->place_changed = true;
    ++sequence->num_places;
  }
}

std::int64_t Scheduler::batch() const {
  for (std::int64_t place = std::ssize(places_); place > 0; --place)
    if (places_[static_cast<std::size_t>(place - 1)] != nullptr) return place;
  return 0;
}

void Scheduler::index_blocks(Sequence& sequence, std::int64_t num_positions) {
  const std::int64_t full = std::min(num_positions, sequence.num_computed) / kBlockSize;
  if (!limits_.prefix_caching || full <= sequence.num_indexed_blocks) return;
  std::vector<Provenance> provenance;
  for (std::int64_t i = 0; i < full; ++i)
    provenance.push_back((i + 1) * kBlockSize <= sequence.prompt_len ? Provenance::kPrompt
                                                                     : Provenance::kDecided);
  index_.insert(sequence.tokens, sequence.table.blocks().first(static_cast<std::size_t>(full)),
                provenance, sequence.request.cache_salt);
  sequence.num_indexed_blocks = full;
}

}  // namespace coppice
