// The decode round as people see it: the newest request's last tree with its texts, and the
// engine's counters. Filled on the engine's thread, read from any.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/engine.h"
#include "io/json.h"
#include "server/engine_loop.h"
#include "server/served_model.h"

namespace coppice {

// One round of one request.
struct SeenRound {
  RequestId id = 0;
  std::int64_t position = 0;           // of the anchor
  DraftTree tree;                      // as verified
  std::vector<std::int32_t> accepted;  // nodes, root first
  std::vector<std::int32_t> emitted;   // tokens: the accepted ones and the bonus
};

// Follows one request at a time: the newest that decoded since the last look.
class RoundWatch {
 public:
  // Cheap: the engine's thread calls it for every sequence of a round.
  void see(const RoundTrace& trace);

  struct Seen {
    // The last one, if possible with drafts; nothing: no round since the last look.
    std::optional<SeenRound> round;
    std::vector<std::int32_t> round_tokens;  // tokens of every round of the request since then
  };
  Seen take();

 private:
  std::mutex mutex_;
  Seen seen_;
};

// The body of GET /v1/rounds: state, queue, cache, counters, and the round when one was seen.
// `model` may be null while it loads.
Json live_json(const EngineStatus& status, const RoundWatch::Seen& seen, const ServedModel* model);

}  // namespace coppice
