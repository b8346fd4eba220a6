// coppice top URL: a running server in the terminal, out of its /metrics.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <thread>

#include "base/error.h"
#include "client/http_client.h"
#include "client/top_view.h"
#include "parse_flags.h"
#include "verbs.h"

namespace coppice {
namespace {

MetricsSnapshot read_metrics(HttpClient& client) {
  const HttpReply reply =
      client.fetch({.path = "/metrics", .timeout = std::chrono::milliseconds(5000)});
  if (!reply.ok())
    throw Error(ErrorKind::kUnavailable,
                "GET /metrics: " +
                    (reply.error.empty() ? "HTTP " + std::to_string(reply.status) : reply.error));
  return MetricsSnapshot(reply.body);
}

}  // namespace

int run_top(int argc, char** argv) {
  CLI::App app("Shows a running server: queue, cache, speed, latencies, rounds.", "coppice top");
  std::string url = "http://127.0.0.1:8000", api_key;
  double interval_s = 1;
  std::int64_t count = 0;
  app.add_option("url", url, "http://HOST:PORT")->capture_default_str();
  app.add_option("--api-key", api_key, "the server's");
  app.add_option("--interval", interval_s, "seconds")->check(CLI::Range(0.05, 3600.0));
  app.add_option("--count", count, "pages to show; 0: until interrupted");
  if (const auto code = parse_flags(app, argc, argv)) return *code;
  std::vector<std::pair<std::string, std::string>> headers;
  if (!api_key.empty()) headers = {{"Authorization", "Bearer " + api_key}};
  HttpClient client(parse_url(url, "URL"), headers);
  // Pages follow one another where nobody can scroll back: in files and pipes.
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  MetricsSnapshot before = read_metrics(client);
  auto last = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; count == 0 || i < count; ++i) {
    std::this_thread::sleep_for(std::chrono::duration<double>(interval_s));
    MetricsSnapshot now = read_metrics(client);
    const auto time = std::chrono::steady_clock::now();
    const std::string page =
        top_view(url, before, now, std::chrono::duration<double>(time - last).count());
    std::printf("%s%s%s", terminal ? "\033[H\033[2J" : "", page.c_str(), terminal ? "" : "\n");
    std::fflush(stdout);
    before = std::move(now);
    last = time;
  }
  return 0;
}

}  // namespace coppice
