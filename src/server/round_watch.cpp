#include "server/round_watch.h"

#include <algorithm>
#include <cmath>

namespace coppice {
namespace {

constexpr std::size_t kMaxRounds = 512;  // counts kept between two looks

double in_ms(std::int64_t ns) {
  return std::round(static_cast<double>(ns) / 1e3) / 1e3;
}

template <typename Number>
Json list_of(const std::vector<Number>& numbers) {
  Json list = Json::array();
  for (const Number number : numbers) list.push_back(number);
  return list;
}

Json totals_json(const EngineMetrics& metrics) {
  Json verbs = Json::object();
  for (std::size_t i = 0; i < kNumVerbs; ++i)
    verbs[name_of(static_cast<Verb>(i))] = in_ms(metrics.verb_ns[i]);
  return Json::object({{"rounds", metrics.num_rounds},
                       {"sequence_rounds", metrics.num_sequence_rounds},
                       {"tokens", metrics.num_decode_tokens},
                       {"draft_tokens", metrics.num_draft_tokens},
                       {"accepted_tokens", metrics.num_accepted_tokens},
                       {"drafts_at_depth", list_of(metrics.drafts_at_depth)},
                       {"accepted_at_depth", list_of(metrics.accepted_at_depth)},
                       {"verb_ms", std::move(verbs)},
                       {"decode_ms", in_ms(metrics.decode_ns)},
                       {"prefill_tokens", metrics.num_prefill_tokens},
                       {"prefill_ms", in_ms(metrics.prefill_ns)},
                       {"cached_tokens", metrics.num_cached_tokens},
                       {"requests", metrics.num_requests},
                       {"finished", metrics.num_finished},
                       {"preemptions", metrics.num_preemptions}});
}

Json round_json(const SeenRound& round, const Tokenizer& tokenizer) {
  Json nodes = Json::array();
  for (std::size_t i = 0; i < round.tree.tokens.size(); ++i) {
    const auto node = static_cast<std::int32_t>(i);
    const bool accepted =
        std::find(round.accepted.begin(), round.accepted.end(), node) != round.accepted.end();
    nodes.push_back(Json::object(
        {{"text", tokenizer.token_bytes(round.tree.tokens[i])},
         {"parent", round.tree.parents[i]},
         {"depth", round.tree.depths[i]},
         {"log_prob", std::round(static_cast<double>(round.tree.scores[i]) * 1e4) / 1e4},
         {"accepted", accepted}}));
  }
  Json emitted = Json::array();
  for (const std::int32_t token : round.emitted) emitted.push_back(tokenizer.token_bytes(token));
  return Json::object({{"request", static_cast<std::int64_t>(round.id)},
                       {"position", round.position},
                       {"nodes", std::move(nodes)},
                       {"emitted", std::move(emitted)}});
}

}  // namespace

void RoundWatch::see(const RoundTrace& trace) {
  const std::lock_guard lock(mutex_);
  if (seen_.round && trace.id < seen_.round->id) return;
  if (seen_.round && trace.id > seen_.round->id) seen_.round_tokens.clear();
  if (seen_.round_tokens.size() < kMaxRounds)
    seen_.round_tokens.push_back(static_cast<std::int32_t>(trace.emitted.size()));
  const bool had_tree =
      seen_.round && seen_.round->id == trace.id && seen_.round->tree.num_nodes() > 0;
  if (had_tree && trace.tree.num_nodes() == 0) return;
  seen_.round = {.id = trace.id,
                 .position = trace.position,
                 .tree = trace.tree,
                 .accepted = trace.accepted,
                 .emitted = {trace.emitted.begin(), trace.emitted.end()}};
}

RoundWatch::Seen RoundWatch::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(seen_, {});
}

Json live_json(const EngineStatus& status, const RoundWatch::Seen& seen, const ServedModel* model) {
  const EngineMetrics& metrics = status.metrics;
  Json json = Json::object(
      {{"state", status.stuck ? "stuck" : name_of(status.state)},
       {"model", model != nullptr ? Json(model->name()) : Json()},
       {"queue",
        Json::object({{"running", metrics.num_running}, {"waiting", status.num_waiting()}})},
       {"kv",
        Json::object({{"blocks", metrics.num_kv_blocks}, {"used", metrics.num_kv_blocks_used}})},
       {"plain_round_ms", std::round(metrics.plain_round_ms * 1e4) / 1e4},
       {"totals", totals_json(metrics)},
       {"round_tokens", list_of(seen.round_tokens)},
       {"round", Json()}});
  if (status.state == EngineState::kLoading) {
    json["phase"] = status.phase;
    json["percent"] = status.percent();
  }
  if (seen.round && model != nullptr) json["round"] = round_json(*seen.round, model->tokenizer);
  return json;
}

}  // namespace coppice
