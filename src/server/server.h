// The whole server: one HTTP port, one engine thread, the routes between them.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_config.h"
#include "server/engine_loop.h"
#include "server/http_router.h"
#include "server/served_model.h"

namespace coppice {

struct ServerOptions {
  EngineConfig engine;  // model: the resolved folder or file
  ServedModelOptions model;
  HttpServerOptions http;
  RouterOptions router;
  EngineLoopOptions loop;
  std::string version;
  Json flags;  // shown by /server_info
  bool timings = false;
  bool reasoning_content = true;
  bool log_requests = false;
  LoadProgress on_progress;  // may be empty; runs on the engine's thread
};

class Server {
 public:
  // The port is open at return; the engine loads on its own thread and until then requests get 503
  // with phase and percent. Throws Error when the port cannot be had.
  explicit Server(ServerOptions options);
  ~Server();  // stops at once
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::uint16_t port() const;
  EngineStatus status() const;
  // Null until loaded.
  std::shared_ptr<const ServedModel> model() const;
  std::vector<std::string> route_names() const;

  // Waits until loading has ended or the time is over; true when requests are served. Throws the
  // loading's Error.
  bool wait_until_loaded(std::chrono::milliseconds timeout);

  // New requests get 503; waits for the running ones and fails what is left after the timeout. True
  // if all were complete.
  bool drain(std::chrono::milliseconds timeout);

  // vLLM's periodic lines since the last call; empty when nothing happened.
  std::vector<std::string> stats_lines();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace coppice
