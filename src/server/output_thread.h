// Carries what the engine emitted to its clients on a thread of its own: text, JSON and waking a
// connection cost more than a row of a small model, and the engine's thread shall launch rounds.
// Thread-safe.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/request.h"
#include "server/api_error.h"

namespace coppice {

// A RequestOutput that owns its parts.
struct EmittedOutput {
  EmittedOutput(const RequestOutput& output, std::int64_t now_ns);

  // What follows it, of the same request.
  void append(EmittedOutput&& next);
  // Valid while this is.
  RequestOutput view() const;

  RequestId id = 0;
  std::vector<std::int32_t> token_ids;
  std::vector<TokenLogprob> logprobs, prompt_logprobs;
  EndReason end_reason = EndReason::kNone;
  std::optional<std::int32_t> stop_token_id;
  RequestStats stats;
  std::int64_t emitted_ns = 0;  // of the last token
};

class OutputReceiver {
 public:
  virtual ~OutputReceiver() = default;
  // One step of one choice, before it is received: at what time it came, how many tokens.
  virtual void observe(std::size_t choice, std::int64_t emitted_ns, std::int64_t num_tokens) = 0;
  // In the order of the engine. Steps that waited for a late thread come as one.
  virtual void receive(std::size_t choice, const EmittedOutput& output) = 0;
  virtual void receive_failure(const ApiError& error) = 0;
};

class OutputThread {
 public:
  OutputThread();
  ~OutputThread();
  OutputThread(const OutputThread&) = delete;
  OutputThread& operator=(const OutputThread&) = delete;

  void post(std::shared_ptr<OutputReceiver> receiver, std::size_t choice, EmittedOutput output);
  void post_failure(std::shared_ptr<OutputReceiver> receiver, const ApiError& error);
  // Hands over what waits and ends the thread; what is posted later is received at once by the
  // caller. Not from a receiver.
  void stop();

 private:
  struct Item {
    std::shared_ptr<OutputReceiver> receiver;
    std::size_t choice = 0;
    std::optional<EmittedOutput> output;
    std::optional<ApiError> failure;
  };
  void post(Item item);
  void work();
  static void deliver(std::vector<Item>& items);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Item> waiting_;
  bool stopping_ = false;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace coppice
