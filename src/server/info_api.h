// What the server says of itself: health, version, models, state.
#pragma once

#include <string>

#include "server/engine_loop.h"
#include "server/http_server.h"
#include "server/served_model.h"

namespace coppice {

// 200 while requests are served; else 503 with state, phase and percent, so that a probe or a
// person sees how far loading is. Costs no token.
void health(const EngineStatus& status, HttpResponder& responder);
// 200 unless the engine has failed or is stuck: what a liveness probe may restart.
void health_live(const EngineStatus& status, HttpResponder& responder);

void list_models(const ServedModel& model, HttpResponder& responder);
// Throws ApiError 404.
void get_model(const ServedModel& model, std::string_view name, HttpResponder& responder);

struct ServerInfo {
  std::string version;
  std::string fingerprint;
  Json flags;  // as given, without secrets
};
void server_info(const ServerInfo& info, const ServedModel& model, const EngineStatus& status,
                 HttpResponder& responder);

}  // namespace coppice
