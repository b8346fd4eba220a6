#include "server/engine_loop.h"

#include <unordered_map>

#include "base/log.h"
#include "base/thread_name.h"

namespace coppice {
namespace {

constexpr std::int64_t kPublishNs = 20'000'000;

}  // namespace

const char* name_of(EngineState state) {
  switch (state) {
    case EngineState::kLoading:
      return "loading";
    case EngineState::kRunning:
      return "running";
    case EngineState::kDraining:
      return "draining";
    case EngineState::kFailed:
      return "failed";
  }
  return "?";
}

std::string EngineStatus::loading() const {
  return "Loading model: " + phase + ", " + std::to_string(percent()) + " %";
}

// Requests inside the engine.
struct EngineLoop::Live {
  struct Entry {
    RequestId id = 0;
    std::shared_ptr<Submission> submission;
  };
  std::unordered_map<Ticket, Entry> entries;
  std::unordered_map<RequestId, Ticket> tickets;  // of the entries
};

EngineLoop::EngineLoop(EngineLoopOptions options, Loader loader, OnLoaded on_loaded)
    : options_(options), live_(std::make_unique<Live>()) {
  thread_ = std::thread([this, loader = std::move(loader), on_loaded = std::move(on_loaded)] {
    set_thread_name("engine");
    run_thread(loader, on_loaded);
  });
}

EngineLoop::~EngineLoop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void EngineLoop::require_open(std::int64_t count) const {
  if (state_ == EngineState::kLoading)
    throw ApiError(503, EngineStatus{.phase = phase_, .progress = progress_}.loading(), "", 2);
  if (state_ == EngineState::kDraining || stopping_)
    throw ApiError(503, "the server is shutting down", "", 5);
  if (state_ == EngineState::kFailed) throw ApiError(503, "the engine has failed: " + failure_);
  const std::int64_t capacity = options_.max_num_seqs + options_.max_queued_requests;
  if (count > capacity)  // would be refused for ever
    throw ApiError(400, "asks for " + std::to_string(count) +
                            " outputs at once; this server holds " + std::to_string(capacity));
  if (count > capacity - in_flight_)
    throw ApiError(
        429, "the queue is full: " + std::to_string(in_flight_) + " requests wait or run", "", 1);
}

void EngineLoop::require_room(std::int64_t count) const {
  const std::lock_guard lock(mutex_);
  require_open(count);
}

std::vector<Ticket> EngineLoop::submit(std::vector<Submission> submissions) {
  std::vector<Ticket> tickets;
  {
    const std::lock_guard lock(mutex_);
    require_open(std::ssize(submissions));
    in_flight_ += std::ssize(submissions);
    for (Submission& submission : submissions) {
      tickets.push_back(next_ticket_++);
      commands_.submissions.emplace_back(tickets.back(), std::move(submission));
    }
    if (!working_) last_step_ns_ = clock_.now_ns();
    working_ = true;
  }
  wake_.notify_one();
  return tickets;
}

void EngineLoop::cancel(std::vector<Ticket> tickets) {
  {
    const std::lock_guard lock(mutex_);
    commands_.cancelled.insert(commands_.cancelled.end(), tickets.begin(), tickets.end());
  }
  wake_.notify_one();
}

void EngineLoop::finish(RequestId id, std::int64_t num_output_tokens) {
  {
    const std::lock_guard lock(mutex_);
    commands_.finished.emplace_back(id, num_output_tokens);
  }
  wake_.notify_one();
}

bool EngineLoop::run(std::function<void(Engine&)> function) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != EngineState::kRunning) return false;
    commands_.functions.push_back(std::move(function));
  }
  wake_.notify_one();
  return true;
}

EngineStatus EngineLoop::status() const {
  EngineStatus status;
  {
    const std::lock_guard lock(mutex_);
    status.state = state_;
    status.phase = phase_;
    status.progress = progress_;
    status.failure = failure_;
    status.in_flight = in_flight_;
    status.metrics = metrics_;
  }
  if (!working_) return status;
  const std::int64_t age = clock_.now_ns() - last_step_ns_;
  const std::int64_t limit =
      std::max<std::int64_t>(options_.stuck_after.count() * 1'000'000, 4 * longest_step_ns_);
  status.step_age_s = static_cast<double>(age) / 1e9;
  status.stuck = status.state != EngineState::kLoading && age > limit;
  return status;
}

bool EngineLoop::drain(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (state_ == EngineState::kRunning) state_ = EngineState::kDraining;
  const bool all = ended_.wait_for(lock, timeout, [&] { return in_flight_ == 0; });
  if (all) return true;
  abort_rest_ = true;
  wake_.notify_one();
  ended_.wait_for(lock, std::chrono::seconds(2), [&] { return in_flight_ == 0; });
  return false;
}

void EngineLoop::run_thread(const Loader& loader, const OnLoaded& on_loaded) {
  if (!load(loader, on_loaded)) return;
  try {
    serve();
  } catch (const std::exception& error) {
    {
      const std::lock_guard lock(mutex_);
      state_ = EngineState::kFailed;
      failure_ = error.what();
    }
    log(LogLevel::kError, std::string("the engine has failed: ") + error.what());
    fail_all(ApiError(500, std::string("the engine has failed: ") + error.what()));
    working_ = false;
  }
}

bool EngineLoop::load(const Loader& loader, const OnLoaded& on_loaded) {
  try {
    engine_ = loader([this](std::int64_t done, std::int64_t total) {
      const std::lock_guard lock(mutex_);
      if (stopping_) throw Error(ErrorKind::kUnavailable, "stopped while loading");
      progress_ = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 0;
      phase_ = done < total ? "loading weights" : "preparing caches and measuring costs";
    });
    publish_metrics(true);
    {
      const std::lock_guard lock(mutex_);
      if (state_ == EngineState::kLoading) state_ = EngineState::kRunning;
    }
    if (on_loaded) on_loaded(nullptr);
  } catch (const std::exception& error) {
    {
      const std::lock_guard lock(mutex_);
      state_ = EngineState::kFailed;
      failure_ = error.what();
    }
    if (on_loaded) on_loaded(&error);
    return false;
  }
  return true;
}

void EngineLoop::serve() {
  while (true) {
    Commands commands;
    bool abort_rest = false;
    {
      std::unique_lock lock(mutex_);
      const auto called = [&] { return stopping_ || abort_rest_ || !commands_.empty(); };
      if (!engine_->has_work() && !called()) {
        working_ = false;
        wake_.wait(lock, called);
      }
      commands = std::exchange(commands_, {});
      abort_rest = std::exchange(abort_rest_, false) || stopping_;
    }
    for (auto& [ticket, submission] : commands.submissions) start(ticket, std::move(submission));
    for (const Ticket ticket : commands.cancelled) cancel_now(ticket);
    for (const auto& [id, count] : commands.finished) finish_now(id, count);
    for (const auto& function : commands.functions) function(*engine_);
    if (abort_rest) {
      fail_all(ApiError(503, "the server is shutting down", "", 5));
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    const std::int64_t begin = clock_.now_ns();
    last_step_ns_ = begin;
    if (engine_->has_work()) engine_->step();
    const std::int64_t end = clock_.now_ns();
    last_step_ns_ = end;
    longest_step_ns_ = std::max<std::int64_t>(longest_step_ns_, end - begin);
    publish_metrics(!engine_->has_work());
  }
}

void EngineLoop::start(Ticket ticket, Submission given) {
  auto submission = std::make_shared<Submission>(std::move(given));
  const auto on_output = [this, ticket, submission](const RequestOutput& output) {
    const bool is_last = output.end_reason != EndReason::kNone;
    if (is_last) publish_metrics(true);  // who has the whole answer finds its rounds counted
    submission->on_output(output);
    if (is_last) end(ticket);
  };
  try {
    const RequestId id = engine_->add_request(std::move(submission->request), on_output);
    live_->entries[ticket] = {.id = id, .submission = submission};
    live_->tickets[id] = ticket;
  } catch (const std::exception& error) {
    submission->on_failure(to_api_error(error));
    end(ticket);
  }
}

void EngineLoop::cancel_now(Ticket ticket) {
  const auto found = live_->entries.find(ticket);
  if (found == live_->entries.end()) return;
  engine_->cancel(found->second.id);
  end(ticket);
}

void EngineLoop::finish_now(RequestId id, std::int64_t num_output_tokens) {
  const auto found = live_->tickets.find(id);
  if (found == live_->tickets.end()) return;
  engine_->finish(id, num_output_tokens);
  end(found->second);
}

void EngineLoop::end(Ticket ticket) {
  if (const auto found = live_->entries.find(ticket); found != live_->entries.end()) {
    live_->tickets.erase(found->second.id);
    live_->entries.erase(found);
  }
  {
    const std::lock_guard lock(mutex_);
    --in_flight_;
  }
  ended_.notify_all();
}

void EngineLoop::fail_all(const ApiError& error) {
  Commands commands;
  {
    const std::lock_guard lock(mutex_);
    commands = std::exchange(commands_, {});
  }
  for (auto& [ticket, submission] : commands.submissions) {
    submission.on_failure(error);
    end(ticket);
  }
  const auto entries = std::exchange(live_->entries, {});
  live_->tickets.clear();
  for (const auto& [ticket, entry] : entries) {
    engine_->cancel(entry.id);
    entry.submission->on_failure(error);
    end(ticket);
  }
}

void EngineLoop::publish_metrics(bool always) {
  const std::int64_t now = clock_.now_ns();
  if (!always && now - published_ns_ < kPublishNs) return;
  published_ns_ = now;
  const EngineMetrics& metrics = engine_->metrics();
  const std::lock_guard lock(mutex_);
  metrics_ = metrics;
}

}  // namespace coppice
