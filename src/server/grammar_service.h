// Compiles grammars off the engine's and the IO threads, and keeps the last ones. Thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "sampling/grammar.h"
#include "server/api_error.h"

namespace coppice {

// What a request's output must match.
struct GrammarRequest {
  GrammarSpec spec;
  std::string field;  // of the request, named in errors
};

struct GrammarServiceOptions {
  int num_threads = 2;
  std::chrono::milliseconds timeout{10'000};  // from the request to the compiled grammar
  std::size_t max_waiting = 256;              // grammars that wait or compile
  std::size_t max_cached = 256;
  std::int64_t max_cached_bytes = std::int64_t{256} << 20;
};

class GrammarService {
 public:
  // Called once, on a thread of the service or, for a cached grammar, within compile.
  using Done = std::function<void(std::shared_ptr<const Grammar> grammar, const ApiError* error)>;

  GrammarService(std::unique_ptr<GrammarCompiler> compiler, const GrammarServiceOptions& options);
  ~GrammarService();
  GrammarService(const GrammarService&) = delete;
  GrammarService& operator=(const GrammarService&) = delete;

  // Errors: 400 naming the field, for what cannot be compiled or takes too long; 503 when too many
  // wait.
  void compile(const GrammarRequest& request, Done done);
  // Fails what waits and ends the threads; later requests get 503.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiter {
    std::string field;
    Done done;
    Clock::time_point deadline;
  };
  struct Job {
    GrammarSpec spec;
    std::vector<Waiter> waiters;
    bool compiling = false;
  };
  struct Cached {
    GrammarSpec spec;
    std::shared_ptr<const Grammar> grammar;
  };

  void work();
  void watch();
  void compile_job(const std::shared_ptr<Job>& job);
  std::shared_ptr<const Grammar> find_cached(const GrammarSpec& spec);         // mutex_ held
  void keep(const GrammarSpec& spec, std::shared_ptr<const Grammar> grammar);  // mutex_ held

  const std::unique_ptr<GrammarCompiler> compiler_;
  const GrammarServiceOptions options_;
  std::mutex mutex_;
  std::condition_variable wake_workers_, wake_watcher_;
  std::list<std::shared_ptr<Job>> jobs_;  // by arrival
  std::list<Cached> cache_;               // last used first
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace coppice
