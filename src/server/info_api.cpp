#include "server/info_api.h"

#include "server/event_stream.h"

namespace coppice {
namespace {

Json status_json(const EngineStatus& status) {
  Json json = Json::object({{"status", status.ready() ? "ok" : name_of(status.state)},
                            {"in_flight", status.in_flight},
                            {"step_age_s", status.step_age_s}});
  if (status.failing()) json["status"] = "failing";
  if (status.stuck) json["status"] = "stuck";
  return json;
}

std::string why_not_ready(const EngineStatus& status) {
  switch (status.state) {
    case EngineState::kLoading:
      return status.loading();
    case EngineState::kDraining:
      return "the server is shutting down; " + std::to_string(status.in_flight) +
             " requests are still running";
    case EngineState::kFailed:
      return "the engine has failed: " + status.failure;
    case EngineState::kRunning:
      break;
  }
  if (status.failing() && !status.stuck)
    return "the last " + std::to_string(status.metrics.not_finite_in_a_row) +
           " requests ended on logits that held NaN or infinity";
  return "no step ended for " + std::to_string(static_cast<int>(status.step_age_s)) +
         " s although work waits";
}

void refuse(const EngineStatus& status, HttpResponder& responder) {
  Json body = status_json(status);
  Json error = Json::object(
      {{"code", 503}, {"message", why_not_ready(status)}, {"type", "unavailable_error"}});
  if (status.state == EngineState::kLoading) {
    error["phase"] = status.phase;
    error["percent"] = status.percent();
  }
  body["error"] = std::move(error);
  responder.send(503, "application/json", write_json(body), {{"Retry-After", "2"}});
}

Json model_json(const ServedModel& model, const std::string& name) {
  return Json::object({{"id", name},
                       {"object", "model"},
                       {"created", static_cast<std::int64_t>(model.created)},
                       {"owned_by", "coppice"},
                       {"root", model.root},
                       {"parent", Json()},
                       {"max_model_len", model.max_model_len},
                       {"permission", Json::array()}});
}

}  // namespace

void health(const EngineStatus& status, HttpResponder& responder) {
  if (!status.ready()) return refuse(status, responder);
  send_json(responder, status_json(status));
}

void health_live(const EngineStatus& status, HttpResponder& responder) {
  if (status.state == EngineState::kFailed || status.stuck) return refuse(status, responder);
  send_json(responder, status_json(status));
}

void list_models(const ServedModel& model, HttpResponder& responder) {
  Json data = Json::array();
  for (const std::string& name : model.names) data.push_back(model_json(model, name));
  send_json(responder, Json::object({{"object", "list"}, {"data", std::move(data)}}));
}

void get_model(const ServedModel& model, std::string_view name, HttpResponder& responder) {
  if (!model.answers_to(std::string(name)))
    throw ApiError(404, "The model `" + std::string(name) + "` does not exist.", "model");
  send_json(responder, model_json(model, std::string(name)));
}

void server_info(const ServerInfo& info, const ServedModel& model, const EngineStatus& status,
                 HttpResponder& responder) {
  const EngineMetrics& engine = status.metrics;
  Json state = Json::object({{"avg_spec_accept_length", engine.tokens_per_round()},
                             {"num_running", engine.num_running},
                             {"num_waiting", status.num_waiting()},
                             {"num_kv_blocks", engine.num_kv_blocks},
                             {"num_kv_blocks_used", engine.num_kv_blocks_used}});
  Json verbs = Json::object();
  for (std::size_t i = 0; i < kNumVerbs; ++i)
    verbs[name_of(static_cast<Verb>(i))] = static_cast<double>(engine.verb_ns[i]) / 1e6;
  state["round_ms"] = std::move(verbs);
  state["num_rounds"] = engine.num_rounds;
  send_json(responder, Json::object({{"version", info.version},
                                     {"model", model.name()},
                                     {"model_path", model.root},
                                     {"engine", model.description},
                                     {"max_model_len", model.max_model_len},
                                     {"max_request_len", model.max_request_len},
                                     {"system_fingerprint", info.fingerprint},
                                     {"flags", info.flags},
                                     {"internal_states", Json::array({std::move(state)})}}));
}

}  // namespace coppice
