// coppice serve MODEL: opens the port at once, loads, answers until a signal, drains.
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <ctime>

#include "base/log.h"
#include "progress_bar.h"
#include "serve_flags.h"
#include "server/service_notify.h"
#include "server/stats_log.h"
#include "verbs.h"

namespace coppice {
namespace {

using Clock = std::chrono::steady_clock;

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

// The signal that came within the time, or 0.
int wait_for_signal(long milliseconds) {
  const sigset_t set = stop_signals();
  const timespec time{.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1'000'000};
  const int signal = sigtimedwait(&set, nullptr, &time);
  return signal > 0 ? signal : 0;
}

std::string with_commas(std::int64_t value) {
  std::string text = std::to_string(value);
  for (int at = static_cast<int>(text.size()) - 3; at > 0; at -= 3)
    text.insert(static_cast<std::size_t>(at), ",");
  return text;
}

// Every client is a file: the soft limit is often 1024.
void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void log_address(const ServeFlags& flags, const Server& server) {
  const std::string& host = flags.server.http.host;
  const bool v6 = host.find(':') != std::string::npos;
  log_info("Starting Coppice server on http://" + (v6 ? "[" + host + "]" : host) + ":" +
           std::to_string(server.port()));
  if (flags.host.empty() && flags.api_keys.empty())
    log_info("Listening on loopback only: neither --host nor --api-key was given");
}

void log_loaded(const Server& server, double seconds) {
  const EngineStatus status = server.status();
  const auto model = server.model();
  const std::int64_t tokens = status.metrics.num_kv_blocks * 64;
  char line[160];
  std::snprintf(line, sizeof line, "Loading weights and preparing the engine took %.2f seconds",
                seconds);
  log_info(line);
  log_info(model->description);
  log_info("GPU KV cache size: " + with_commas(tokens) + " tokens");
  std::snprintf(line, sizeof line, "Maximum concurrency for %s tokens per request: %.2fx",
                with_commas(model->max_model_len).c_str(),
                static_cast<double>(tokens) / static_cast<double>(model->max_model_len));
  log_info(line);
  log_info("Largest request that fits: " + with_commas(model->max_request_len) +
           " tokens, prompt and output");
  log_info("Available routes are:");
  for (const std::string& route : server.route_names()) {
    const std::size_t space = route.find(' ');
    log_info("Route: " + route.substr(space + 1) + ", Methods: " + route.substr(0, space));
  }
  log_info("Application startup complete.");
}

// True when loaded, false when a signal came first.
bool load(Server& server) {
  const auto start = Clock::now();
  while (!server.wait_until_loaded(std::chrono::milliseconds(50)))
    if (wait_for_signal(1) != 0) return false;
  log_loaded(server, std::chrono::duration<double>(Clock::now() - start).count());
  return true;
}

// Until a signal comes or the engine fails.
void answer(const ServeFlags& flags, Server& server) {
  constexpr std::chrono::seconds kStatsInterval{10};
  auto last_stats = Clock::now();
  const long watchdog_ms = watchdog_interval_ms();
  service_notify("READY=1");
  while (wait_for_signal(watchdog_ms > 0 ? std::min(watchdog_ms, 500L) : 500) == 0) {
    const EngineStatus status = server.status();
    if (watchdog_ms > 0 && status.ready()) service_notify("WATCHDOG=1");
    if (status.state == EngineState::kFailed) {
      wait_for_signal(500);  // the failed requests' answers leave
      throw Error(ErrorKind::kUnavailable, "the engine has failed: " + status.failure);
    }
    if (flags.disable_log_stats || Clock::now() - last_stats < kStatsInterval) continue;
    last_stats = Clock::now();
    for (const std::string& line : server.stats_lines()) log_info(line);
  }
}

}  // namespace

int run_serve(int argc, char** argv) {
  // Before any thread: signals come to sigtimedwait alone.
  const sigset_t signals = stop_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  raise_file_limit();
  ServeFlags flags;
  if (const std::optional<int> code = flags.parse(argc, argv)) return *code;

  ProgressBar bar("loading", flags.quiet);
  flags.server.on_progress = [&](std::int64_t done, std::int64_t total) {
    bar.update(done, total);
  };
  Server server(flags.server);
  log_address(flags, server);
  if (!load(server)) return 0;
  answer(flags, server);

  service_notify("STOPPING=1");
  log_info("Shutting down: waiting for running requests");
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);  // a second signal ends the process at once
  const bool complete =
      server.drain(std::chrono::milliseconds(static_cast<long>(flags.shutdown_timeout_s * 1000)));
  log_info(complete ? "All requests were answered" : "The time was over; requests were cut off");
  return 0;
}

}  // namespace coppice
