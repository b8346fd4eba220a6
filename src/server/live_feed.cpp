#include "server/live_feed.h"

#include <algorithm>

#include "server/event_stream.h"

namespace coppice {
namespace {

constexpr std::chrono::milliseconds kPeriod{100};
constexpr int kSignOfLifeTicks = 100;  // 10 s
constexpr std::size_t kMaxListeners = 64;

}  // namespace

LiveFeed::LiveFeed(EngineLoop& loop, const ServedModelSlot& model)
    : loop_(loop), model_(model), thread_([this] { run(); }) {}

LiveFeed::~LiveFeed() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void LiveFeed::answer(const HttpRequest& request, const std::shared_ptr<HttpResponder>& responder) {
  const Json now = live_json(loop_.status(), {}, model_.get().get());
  const bool streams = request.method == "GET" &&
                       request.header("accept").find("text/event-stream") != std::string_view::npos;
  if (!streams) return send_json(*responder, now);
  {
    const std::lock_guard lock(mutex_);
    if (listeners_.size() >= kMaxListeners)
      throw ApiError(429, "too many listen to the rounds already", "", 5);
    begin_events(*responder);
    send_event(*responder, now);
    if (closed_) return end_events(*responder);
    listeners_.push_back(responder);
  }
  wake_.notify_all();
  responder->on_disconnect([this, listener = responder.get()] { leave(listener); });
}

void LiveFeed::leave(const HttpResponder* listener) {
  const std::lock_guard lock(mutex_);
  std::erase_if(listeners_, [&](const auto& one) { return one.get() == listener; });
}

void LiveFeed::close() {
  std::vector<std::shared_ptr<HttpResponder>> listeners;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    listeners.swap(listeners_);
  }
  for (const auto& listener : listeners) end_events(*listener);
}

void LiveFeed::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (listeners_.empty()) {
      watch(false);
      wake_.wait(lock, [&] { return stopping_ || !listeners_.empty(); });
      continue;
    }
    watch(true);
    wake_.wait_for(lock, kPeriod, [&] { return stopping_; });
    const std::string event = next_event();
    if (event.empty()) continue;
    for (const auto& listener : listeners_) listener->write(event);
  }
}

// While the engine loads it cannot be watched yet: tried again at the next tick.
void LiveFeed::watch(bool wanted) {
  if (watching_ == wanted) return;
  rounds_->take();  // what an earlier listener left
  const bool asked = loop_.run([wanted, rounds = rounds_](Engine& engine) {
    engine.set_round_observer(wanted ? [rounds](const RoundTrace& trace) { rounds->see(trace); }
                                     : RoundObserver());
  });
  if (asked) watching_ = wanted;
}

std::string LiveFeed::next_event() {
  const Json now = live_json(loop_.status(), rounds_->take(), model_.get().get());
  std::string event = "data: " + write_json(now) + "\n\n";
  if (event != last_event_) {
    quiet_ticks_ = 0;
    last_event_ = event;
    return event;
  }
  if (++quiet_ticks_ % kSignOfLifeTicks != 0) return {};
  return ": no change\n\n";
}

}  // namespace coppice
