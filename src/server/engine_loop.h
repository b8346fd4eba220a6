// The one thread that owns the engine: loads it, feeds it and steps it while there is work.
// Everything public is thread-safe; callbacks run on the engine's thread and must not block.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "server/api_error.h"

namespace coppice {

using Ticket = std::uint64_t;

// One request on its way into the engine. After on_failure, or an output with an end reason, or a
// cancel, nothing more is called.
struct Submission {
  Request request;
  std::function<void(const RequestOutput&)> on_output;
  std::function<void(const ApiError&)> on_failure;
};

struct EngineLoopOptions {
  std::int64_t max_queued_requests = 4096;  // beyond those that can run at once
  std::int64_t max_num_seqs = 8;
  // A step that takes longer counts as stuck, and longer than four times the longest so far.
  std::chrono::milliseconds stuck_after{5000};
};

enum class EngineState { kLoading, kRunning, kDraining, kFailed };
const char* name_of(EngineState state);  // "loading", "running", "draining", "failed"

// So many requests in a row that end on logits which are not finite: the engine is failing.
inline constexpr std::int64_t kFailingRequests = 8;

// What the loop knows without asking the engine.
struct EngineStatus {
  EngineState state = EngineState::kLoading;
  std::string phase;           // while loading
  double progress = 0;         // 0 .. 1 of the phase
  std::string failure;         // kFailed: the cause
  std::int64_t in_flight = 0;  // requests accepted and not ended
  double step_age_s = 0;       // since the last step ended; 0 without work
  bool stuck = false;          // work waits and the step takes too long
  EngineMetrics metrics;       // counts: with all rounds of requests that have ended
  // One request after the other ends on logits that are not finite: damaged weights or memory.
  bool failing() const { return metrics.not_finite_in_a_row >= kFailingRequests; }
  bool ready() const { return state == EngineState::kRunning && !stuck && !failing(); }
  int percent() const { return static_cast<int>(progress * 100); }
  // Accepted requests that do not run yet.
  std::int64_t num_waiting() const {
    return std::max<std::int64_t>(in_flight - metrics.num_running, 0);
  }
  // How far loading is, in a sentence.
  std::string loading() const;
};

class EngineLoop {
 public:
  // Loads whatever the caller needs beside the engine, too. Runs on the loop's thread.
  using Loader = std::function<std::unique_ptr<Engine>(const LoadProgress&)>;
  // Called once on the loop's thread, when requests are accepted (error is null) or never will be.
  using OnLoaded = std::function<void(const std::exception* error)>;

  EngineLoop(EngineLoopOptions options, Loader loader, OnLoaded on_loaded = {});
  ~EngineLoop();  // fails what is left
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  // All of them or none. Throws ApiError 503 (loading, draining, failed) or 429 (queue full), with
  // Retry-After. Faults of a request itself come through on_failure.
  std::vector<Ticket> submit(std::vector<Submission> submissions);
  // Throws what submit would for so many, before memory is spent on them.
  void require_room(std::int64_t count) const;
  // Ends requests whose client left; tickets that have ended already are ignored.
  void cancel(std::vector<Ticket> tickets);

  // Ends a request after its first num_output_tokens: a stop string was found in their text.
  // Ignored when it has ended already.
  void finish(RequestId id, std::int64_t num_output_tokens);

  // Runs a function on the engine's thread between two steps; false when there is no engine.
  bool run(std::function<void(Engine&)> function);

  EngineStatus status() const;

  // Refuses new requests from now on; waits until the accepted ones have ended or the time is over,
  // then fails the rest. True if none had to be failed.
  bool drain(std::chrono::milliseconds timeout);

 private:
  struct Live;
  struct Commands {
    std::vector<std::pair<Ticket, Submission>> submissions;
    std::vector<Ticket> cancelled;
    std::vector<std::pair<RequestId, std::int64_t>> finished;
    std::vector<std::function<void(Engine&)>> functions;
    bool empty() const {
      return submissions.empty() && cancelled.empty() && finished.empty() && functions.empty();
    }
  };

  void run_thread(const Loader& loader, const OnLoaded& on_loaded);
  bool load(const Loader& loader, const OnLoaded& on_loaded);
  void serve();
  void start(Ticket ticket, Submission submission);
  void cancel_now(Ticket ticket);
  void finish_now(RequestId id, std::int64_t num_output_tokens);
  void end(Ticket ticket);
  void fail_all(const ApiError& error);
  void publish_metrics(bool always);
  void require_open(std::int64_t count) const;  // mutex_ held

  const EngineLoopOptions options_;
  const SteadyClock clock_;

  mutable std::mutex mutex_;
  std::condition_variable wake_, ended_;
  Commands commands_;
  EngineState state_ = EngineState::kLoading;
  std::string phase_ = "reading the tokenizer";
  double progress_ = 0;
  std::string failure_;
  EngineMetrics metrics_;
  std::int64_t in_flight_ = 0;
  Ticket next_ticket_ = 1;
  bool stopping_ = false;
  bool abort_rest_ = false;

  std::atomic<std::int64_t> last_step_ns_{0};
  std::atomic<std::int64_t> longest_step_ns_{0};
  std::atomic<bool> working_{false};

  // The engine thread's own.
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Live> live_;
  std::int64_t published_ns_ = 0;

  std::thread thread_;
};

}  // namespace coppice
