// The plan as JSON: everything the text says, and every budget that was looked at.
#include "planner/plan.h"

namespace coppice {
namespace {

Json time_json(const OpTime& time) {
  return Json::object({{"us", time.us()},
                       {"fixed_us", time.fixed_us},
                       {"memory_us", time.memory_us},
                       {"math_us", time.math_us},
                       {"link_us", time.link_us},
                       {"limit", name_of(time.limit())}});
}

Json round_json(const PlannedRound& round) {
  Json parts = Json::object();
  for (std::size_t i = 0; i < kNumParts; ++i)
    if (round.time.parts[i].us() > 0)
      parts[name_of(static_cast<Part>(i))] = time_json(round.time.parts[i]);
  return Json::object({{"budget", round.budget},
                       {"tokens_per_round", round.tokens_per_round},
                       {"tokens_per_s_user", round.tokens_per_s_user()},
                       {"tokens_per_s", round.tokens_per_s()},
                       {"total", time_json(round.time.total())},
                       {"parts", std::move(parts)},
                       {"weight_bytes", round.totals.weight_bytes},
                       {"kv_bytes", round.totals.kv_bytes},
                       {"activation_bytes", round.totals.activation_bytes},
                       {"message_bytes", round.totals.message_bytes},
                       {"flops", round.totals.flops},
                       {"launches", round.totals.launches},
                       {"distinct_experts", round.distinct_experts}});
}

Json point_json(const PlannedPoint& point) {
  const PlannedRound& best = point.best_round();
  Json rounds = Json::array(), changes = Json::array();
  for (const PlannedRound& round : point.rounds) rounds.push_back(round_json(round));
  for (const Change& change : amdahl_table(best))
    changes.push_back(Json::object({{"what", change.what}, {"us", change.us}}));
  return Json::object({{"batch", best.batch},
                       {"context", best.context},
                       {"fits", point.fits},
                       {"best_budget", best.budget},
                       {"rounds", std::move(rounds)},
                       {"what_would_change_it", std::move(changes)}});
}

Json device_json(const DevicePlan& plan) {
  const DeviceSpec& device = plan.device;
  const MemoryPlan& memory = plan.memory;
  Json points = Json::array();
  for (const PlannedPoint& point : plan.points) points.push_back(point_json(point));
  return Json::object({{"name", std::string(device.name)},
                       {"title", std::string(device.title)},
                       {"arch", std::string(device.arch)},
                       {"read_tb_s", device.read_tb_s},
                       {"bf16_reached_tflops", device.bf16_reached},
                       {"source", std::string(device.source)},
                       {"sums_measured_ranks", device.peer_sum.measured_ranks},
                       {"memory", Json::object({{"usable", memory.usable},
                                                {"target_weights", memory.target_weights},
                                                {"drafter_weights", memory.drafter_weights},
                                                {"buffers", memory.buffers},
                                                {"graphs", memory.graphs},
                                                {"runtime", memory.runtime},
                                                {"kv_bytes", memory.kv_bytes},
                                                {"kv_per_token", memory.kv_per_token},
                                                {"kv_tokens", memory.kv_tokens},
                                                {"fits", memory.fits}})},
                       {"points", std::move(points)}});
}

}  // namespace

Json plan_as_json(const Plan& plan) {
  const PlanRequest& request = plan.request;
  Json devices = Json::array();
  for (const DevicePlan& device : plan.devices) devices.push_back(device_json(device));
  return Json::object(
      {{"schema", "coppice-plan-1"},
       {"model", request.model},
       {"tensor_parallel_size", request.num_ranks},
       {"drafter", request.drafter},
       {"acceptance",
        Json::object({{"name", plan.acceptance.name}, {"source", plan.acceptance.source}})},
       {"expert_overlap",
        request.expert_overlap.is_none() ? Json("none") : Json(request.expert_overlap.source())},
       {"kernel_times", plan.times_source},
       {"measured_on", plan.times_device},
       {"devices", std::move(devices)}});
}

}  // namespace coppice
