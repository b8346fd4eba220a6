#include "server/grammar_service.h"

#include <algorithm>
#include <utility>

#include "base/thread_name.h"

namespace coppice {
namespace {

ApiError stopping_error() {
  return {503, "the server is shutting down", "", 5};
}

}  // namespace

GrammarService::GrammarService(std::unique_ptr<GrammarCompiler> compiler,
                               const GrammarServiceOptions& options)
    : compiler_(std::move(compiler)), options_(options) {
  for (int i = 0; i < options.num_threads; ++i)
    threads_.emplace_back([this] {
      set_thread_name("grammar");
      work();
    });
  threads_.emplace_back([this] { watch(); });
}

GrammarService::~GrammarService() {
  stop();
}

void GrammarService::stop() {
  std::list<std::shared_ptr<Job>> jobs;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const auto& job : jobs_)
      jobs.push_back(std::make_shared<Job>(
          Job{.spec = {}, .waiters = std::exchange(job->waiters, {}), .compiling = false}));
    jobs_.clear();
  }
  wake_workers_.notify_all();
  wake_watcher_.notify_all();
  const ApiError error = stopping_error();
  for (const auto& job : jobs)
    for (const Waiter& waiter : job->waiters) waiter.done(nullptr, &error);
  for (std::thread& thread : std::exchange(threads_, {})) thread.join();
}

void GrammarService::compile(const GrammarRequest& request, Done done) {
  std::unique_lock lock(mutex_);
  if (stopping_) throw stopping_error();
  if (const std::shared_ptr<const Grammar> cached = find_cached(request.spec)) {
    lock.unlock();
    return done(cached, nullptr);
  }
  const auto same = std::find_if(jobs_.begin(), jobs_.end(),
                                 [&](const auto& job) { return job->spec == request.spec; });
  if (same == jobs_.end() && jobs_.size() >= options_.max_waiting)
    throw ApiError(503, "too many grammars wait to be compiled", request.field, 1);
  const std::shared_ptr<Job> job =
      same != jobs_.end() ? *same : std::make_shared<Job>(Job{.spec = request.spec});
  if (same == jobs_.end()) jobs_.push_back(job);
  job->waiters.push_back({.field = request.field,
                          .done = std::move(done),
                          .deadline = Clock::now() + options_.timeout});
  lock.unlock();
  wake_workers_.notify_one();
  wake_watcher_.notify_one();
}

void GrammarService::work() {
  while (true) {
    std::shared_ptr<Job> job;
    {
      std::unique_lock lock(mutex_);
      const auto next = [&] {
        return std::find_if(jobs_.begin(), jobs_.end(),
                            [](const auto& j) { return !j->compiling; });
      };
      wake_workers_.wait(lock, [&] { return stopping_ || next() != jobs_.end(); });
      if (stopping_) return;
      job = *next();
      job->compiling = true;
    }
    compile_job(job);
  }
}

void GrammarService::compile_job(const std::shared_ptr<Job>& job) {
  std::shared_ptr<const Grammar> grammar;
  std::string cause;
  try {
    grammar = compiler_->compile(job->spec);
  } catch (const std::exception& error) {
    cause = error.what();
  }
  std::vector<Waiter> waiters;
  {
    const std::lock_guard lock(mutex_);
    jobs_.remove(job);
    waiters = std::exchange(job->waiters, {});
    if (grammar) keep(job->spec, grammar);
  }
  for (const Waiter& waiter : waiters) {
    const ApiError error(400, waiter.field + ": " + cause, waiter.field);
    waiter.done(grammar, grammar ? nullptr : &error);
  }
}

// Answers those that have waited too long; their grammar, once compiled, serves later requests.
void GrammarService::watch() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    std::vector<Waiter> late;
    auto next = Clock::time_point::max();
    for (const auto& job : jobs_) {
      const auto first_late =
          std::stable_partition(job->waiters.begin(), job->waiters.end(),
                                [](const Waiter& w) { return w.deadline > Clock::now(); });
      late.insert(late.end(), first_late, job->waiters.end());
      job->waiters.erase(first_late, job->waiters.end());
      for (const Waiter& waiter : job->waiters) next = std::min(next, waiter.deadline);
    }
    std::erase_if(jobs_, [](const auto& job) { return job->waiters.empty() && !job->compiling; });
    if (!late.empty()) {
      lock.unlock();
      for (const Waiter& waiter : late) {
        const ApiError error(400,
                             waiter.field + ": takes longer to compile than " +
                                 std::to_string(options_.timeout.count()) + " ms",
                             waiter.field);
        waiter.done(nullptr, &error);
      }
      lock.lock();
    } else if (next == Clock::time_point::max()) {
      wake_watcher_.wait(lock);
    } else {
      wake_watcher_.wait_until(lock, next);
    }
  }
}

std::shared_ptr<const Grammar> GrammarService::find_cached(const GrammarSpec& spec) {
  for (auto it = cache_.begin(); it != cache_.end(); ++it) {
    if (!(it->spec == spec)) continue;
    cache_.splice(cache_.begin(), cache_, it);
    return it->grammar;
  }
  return nullptr;
}

void GrammarService::keep(const GrammarSpec& spec, std::shared_ptr<const Grammar> grammar) {
  cache_.push_front({spec, std::move(grammar)});
  std::int64_t bytes = 0;
  std::size_t count = 0;
  for (auto it = cache_.begin(); it != cache_.end(); ++it, ++count) {
    bytes += it->grammar->num_bytes() + std::ssize(it->spec.text);
    if (count >= 1 && (count >= options_.max_cached || bytes > options_.max_cached_bytes)) {
      cache_.erase(it, cache_.end());
      return;
    }
  }
}

}  // namespace coppice
