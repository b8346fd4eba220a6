// A server over the shipped model, for tests; skips visibly when the model is absent.
#pragma once

#include <filesystem>
#include <memory>

#include "server/server.h"
#include "tests/support/eventually.h"

namespace coppice::testing {

inline bool has_tiny_model() {
  return std::filesystem::exists("models/tiny-k2/config.json");
}

inline ServerOptions tiny_options() {
  ServerOptions options;
  options.engine.model = "models/tiny-k2";
  options.engine.speculative_model = "models/tiny-k2-dflash";
  options.engine.speculative = {.method = SpeculativeMethod::kDdtree, .ddtree_budget = 12};
  options.engine.max_model_len = 1024;
  options.engine.num_threads = 2;
  options.model.model = "tiny-k2";
  options.http.port = 0;
  options.version = "test";
  return options;
}

inline std::unique_ptr<Server> start_tiny(const ServerOptions& options) {
  auto server = std::make_unique<Server>(options);
  while (!server->wait_until_loaded(kPatience)) {
  }
  while (!server->status().ready()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return server;
}

}  // namespace coppice::testing
