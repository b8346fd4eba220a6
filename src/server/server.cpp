#include "server/server.h"

#include <condition_variable>
#include <cstdio>

#include "base/log.h"
#include "server/chat_api.h"
#include "server/completion_api.h"
#include "server/event_stream.h"
#include "server/info_api.h"
#include "server/live_feed.h"
#include "server/messages_api.h"
#include "server/openapi.h"
#include "server/responses_api.h"
#include "server/stats_log.h"
#include "server/tokenize_api.h"
#include "server/web_page.h"

namespace coppice {
namespace {

using Responder = std::shared_ptr<HttpResponder>;

// FNV-1a, as eight hex digits.
std::string short_hash(std::string_view text) {
  std::uint32_t hash = 2166136261u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  char digits[9];
  std::snprintf(digits, sizeof digits, "%08x", hash);
  return digits;
}

}  // namespace

struct Server::Impl {
  explicit Impl(ServerOptions given)
      : options(std::move(given)),
        router(options.router),
        loop(
            loop_options(options), [this](const LoadProgress& progress) { return load(progress); },
            [this](const std::exception* error) { loaded(error); }),
        stats(options.loop.max_num_seqs) {
    add_info_routes();
    add_api_routes();
    documented_routes = router.route_names();
    add_missing_routes();
    add_web_routes(router);
    http = std::make_unique<HttpServer>(options.http, [this](const HttpRequest& request,
                                                             const Responder& responder) {
      if (options.log_requests)
        log_info("Received request " + request.method + " " + request.path + " from " +
                 request.remote_address + ", " + std::to_string(request.body.size()) + " bytes");
      router.handle(request, responder);
    });
  }

  static EngineLoopOptions loop_options(const ServerOptions& options) {
    EngineLoopOptions loop = options.loop;
    loop.max_num_seqs = options.engine.max_num_seqs;
    return loop;
  }

  ~Impl() {
    stop_grammars();
    loop.drain(std::chrono::milliseconds(0));  // while the port still takes answers
    outputs.stop();
    http.reset();
    stop_grammars();  // a model may have come in meanwhile; now nobody asks it for more
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void stop_grammars() {
    GrammarService* service = nullptr;
    {
      const std::lock_guard lock(mutex);
      service = grammars.get();
    }
    if (service != nullptr) service->stop();
  }
  std::unique_ptr<Engine> load(const LoadProgress& progress);
  void loaded(const std::exception* error);
  void add_info_routes();
  void add_api_routes();
  void add_missing_routes();
  void reset_prefix_cache(const Responder& responder);

  // The model, or ApiError 503 while it loads.
  std::shared_ptr<const ServedModel> require_model() const;
  ApiContext context() const;

  const ServerOptions options;
  ServedModelSlot model;
  mutable ServerMetrics metrics;
  HttpRouter router;
  std::vector<std::string> documented_routes;  // all but those that only answer 501

  std::mutex mutex;
  std::condition_variable load_ended;
  bool has_loaded = false;
  std::exception_ptr load_error;
  // Written by the engine's thread before the model is set, then only read.
  std::string fingerprint;
  std::unique_ptr<GrammarService> grammars;

  // The loop's thread begins with its constructor: what it touches stands above.
  mutable OutputThread outputs;  // stopped before the loop goes
  mutable EngineLoop loop;
  LiveFeed live{loop, model};
  StatsLog stats;
  std::unique_ptr<HttpServer> http;
};

std::unique_ptr<Engine> Server::Impl::load(const LoadProgress& progress) {
  auto served = ServedModel::load(options.model, options.engine.model);
  auto engine = Engine::load(options.engine, [&](std::int64_t done, std::int64_t total) {
    progress(done, total);
    if (options.on_progress) options.on_progress(done, total);
  });
  served->take_limits(*engine);
  if (auto compiler = make_grammar_compiler(served->tokenizer, served->vocab_size,
                                            engine->model_config().eos_token_ids)) {
    auto service = std::make_unique<GrammarService>(std::move(compiler), GrammarServiceOptions{});
    const std::lock_guard lock(mutex);
    grammars = std::move(service);
  }
  fingerprint = "coppice-" + options.version + "-tp" +
                std::to_string(options.engine.tensor_parallel_size) + "-" +
                short_hash(served->description);
  model.set(std::move(served));
  return engine;
}

void Server::Impl::loaded(const std::exception* error) {
  {
    const std::lock_guard lock(mutex);
    has_loaded = true;
    if (error != nullptr) load_error = std::current_exception();  // with its kind: the exit code
  }
  load_ended.notify_all();
}

std::shared_ptr<const ServedModel> Server::Impl::require_model() const {
  if (auto served = model.get()) return served;
  const EngineStatus status = loop.status();
  if (status.state == EngineState::kFailed)
    throw ApiError(503, "the model could not be loaded: " + status.failure);
  throw ApiError(503, status.loading(), "", 2);
}

ApiContext Server::Impl::context() const {
  auto served = require_model();
  return {.generation = {.loop = &loop,
                         .outputs = &outputs,
                         .metrics = &metrics,
                         .grammars = grammars.get(),
                         .model = std::move(served)},
          .fingerprint = fingerprint,
          .timings = options.timings,
          .reasoning_content = options.reasoning_content};
}

void Server::Impl::add_info_routes() {
  const auto open = HttpRouter::Access::kOpen;
  const auto guarded = HttpRouter::Access::kGuarded;
  const auto get = [this](const char* path, HttpRouter::Access access, auto answer) {
    router.add("GET", path, access,
               [answer](const HttpRequest&, std::string_view, const Responder& r) { answer(*r); });
  };
  for (const char* path : {"/health", "/ping", "/health/ready", "/health_generate"})
    get(path, open, [this](HttpResponder& r) { health(loop.status(), r); });
  get("/health/live", open, [this](HttpResponder& r) { health_live(loop.status(), r); });
  get("/openapi.json", guarded, [this](HttpResponder& r) {
    send_json(r, openapi_document(documented_routes, options.version));
  });
  get("/version", open, [this](HttpResponder& r) {
    send_json(r, Json::object({{"version", options.version}}));
  });
  get("/metrics", guarded, [this](HttpResponder& r) {
    const auto served = model.get();
    r.send(200, "text/plain; version=0.0.4; charset=utf-8",
           metrics.write(loop.status(), served ? served->name() : ""));
  });
  get("/load", guarded, [this](HttpResponder& r) {
    send_json(r, Json::object({{"server_load", loop.status().in_flight}}));
  });
  router.add("GET", "/v1/rounds", guarded,
             [this](const HttpRequest& request, std::string_view, const Responder& r) {
               live.answer(request, r);
             });
  get("/v1/models", guarded, [this](HttpResponder& r) { list_models(*require_model(), r); });
  router.add("GET", "/v1/models/*", guarded,
             [this](const HttpRequest&, std::string_view name, const Responder& r) {
               get_model(*require_model(), name, *r);
             });
  for (const char* path : {"/server_info", "/get_server_info"})
    get(path, guarded, [this](HttpResponder& r) {
      const auto served = require_model();
      server_info({.version = options.version, .fingerprint = fingerprint, .flags = options.flags},
                  *served, loop.status(), r);
    });
}

void Server::Impl::add_api_routes() {
  const auto post = [this](const char* path, auto answer) {
    router.add("POST", path, HttpRouter::Access::kGuarded,
               [answer](const HttpRequest& request, std::string_view, const Responder& r) {
                 answer(request, r);
               });
  };
  post("/v1/chat/completions", [this](const HttpRequest& request, const Responder& r) {
    chat_completions(context(), request, r);
  });
  post("/v1/chat/completions/render", [this](const HttpRequest& request, const Responder& r) {
    render_chat_completions(context(), request, *r);
  });
  post("/v1/completions", [this](const HttpRequest& request, const Responder& r) {
    completions(context(), request, r);
  });
  post("/v1/responses", [this](const HttpRequest& request, const Responder& r) {
    responses(context(), request, r);
  });
  post("/v1/messages",
       [this](const HttpRequest& request, const Responder& r) { messages(context(), request, r); });
  post("/v1/messages/count_tokens", [this](const HttpRequest& request, const Responder& r) {
    count_message_tokens(context(), request, *r);
  });
  post("/tokenize", [this](const HttpRequest& request, const Responder& r) {
    tokenize(*require_model(), request, *r);
  });
  post("/detokenize", [this](const HttpRequest& request, const Responder& r) {
    detokenize(*require_model(), request, *r);
  });
  for (const char* path : {"/reset_prefix_cache", "/flush_cache"})
    post(path, [this](const HttpRequest&, const Responder& r) { reset_prefix_cache(r); });
  router.add("GET", "/tokenizer_info", HttpRouter::Access::kGuarded,
             [this](const HttpRequest&, std::string_view, const Responder& r) {
               tokenizer_info(*require_model(), *r);
             });
}

void Server::Impl::reset_prefix_cache(const Responder& responder) {
  const auto reset = [responder](Engine& engine) {
    engine.reset_prefix_cache();
    send_json(*responder, Json::object({{"success", true}}));
  };
  if (!loop.run(reset)) throw ApiError(503, "the engine does not run", "", 2);
}

// Endpoints that clients of vLLM and SGLang know and that are not here: said plainly.
void Server::Impl::add_missing_routes() {
  constexpr std::array kMissing = {"/v1/embeddings",
                                   "/v1/score",
                                   "/score",
                                   "/rerank",
                                   "/v1/rerank",
                                   "/classify",
                                   "/pooling",
                                   "/v1/audio/transcriptions",
                                   "/v1/audio/speech",
                                   "/v1/images/generations",
                                   "/v1/load_lora_adapter",
                                   "/v1/unload_lora_adapter",
                                   "/sleep",
                                   "/wake_up",
                                   "/start_profile",
                                   "/stop_profile",
                                   "/generate"};
  for (const char* path : kMissing)
    router.add("POST", path, HttpRouter::Access::kGuarded,
               [path](const HttpRequest&, std::string_view, const auto&) {
                 throw ApiError(501, std::string(path) + " is not supported by this server");
               });
}

Server::Server(ServerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Server::~Server() = default;

std::uint16_t Server::port() const {
  return impl_->http->port();
}
EngineStatus Server::status() const {
  return impl_->loop.status();
}
std::shared_ptr<const ServedModel> Server::model() const {
  return impl_->model.get();
}
std::vector<std::string> Server::route_names() const {
  return impl_->documented_routes;
}

bool Server::wait_until_loaded(std::chrono::milliseconds timeout) {
  std::unique_lock lock(impl_->mutex);
  if (!impl_->load_ended.wait_for(lock, timeout, [&] { return impl_->has_loaded; })) return false;
  if (impl_->load_error) std::rethrow_exception(impl_->load_error);
  return true;
}

bool Server::drain(std::chrono::milliseconds timeout) {
  const auto start = std::chrono::steady_clock::now();
  const bool complete = impl_->loop.drain(timeout);
  impl_->live.close();
  const auto used = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - start);
  const auto left = std::max(timeout - used, std::chrono::milliseconds(500));
  return impl_->http->drain(left) && complete;
}

std::vector<std::string> Server::stats_lines() {
  return impl_->stats.lines(impl_->loop.status(), impl_->metrics.totals());
}

}  // namespace coppice
