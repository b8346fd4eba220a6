// GET /v1/rounds: what the engine does right now, once as JSON or as a stream of at most ten events
// a second. While nobody listens its thread sleeps and the engine shows it nothing.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/engine_loop.h"
#include "server/http_server.h"
#include "server/round_watch.h"

namespace coppice {

// Thread-safe. loop and model outlive it; the HTTP server must have stopped before it goes.
class LiveFeed {
 public:
  LiveFeed(EngineLoop& loop, const ServedModelSlot& model);
  ~LiveFeed();
  LiveFeed(const LiveFeed&) = delete;
  LiveFeed& operator=(const LiveFeed&) = delete;

  // A stream for who accepts text/event-stream, one JSON object (without a round) for others.
  // Throws ApiError 429 when too many listen.
  void answer(const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder);

  // Ends all streams, now and later, so that they do not hold up a shutdown.
  void close();

 private:
  void run();
  void watch(bool wanted);
  // The next event, or "" when nothing has changed and nobody needs a sign of life.
  std::string next_event();
  void leave(const HttpResponder* listener);

  EngineLoop& loop_;
  const ServedModelSlot& model_;
  const std::shared_ptr<RoundWatch> rounds_ = std::make_shared<RoundWatch>();  // the engine's too

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::shared_ptr<HttpResponder>> listeners_;
  bool closed_ = false;
  bool stopping_ = false;

  // The feed's thread's own.
  bool watching_ = false;
  std::string last_event_;
  int quiet_ticks_ = 0;

  std::thread thread_;
};

}  // namespace coppice
