// coppice run-batch: a file of requests in OpenAI's batch format, answered by an engine in this
// process (or by a running server), one answer a line, in order.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "client/batch_file.h"
#include "client/http_client.h"
#include "io/text_file.h"
#include "output_file.h"
#include "parse_flags.h"
#include "serve_flags.h"
#include "verbs.h"

namespace coppice {
namespace {

struct BatchFlags {
  std::string input, output, url, api_key;
  std::int64_t max_concurrency = 256;
};

std::string read_all(const std::string& path) {
  if (path != "-") return read_text_file(path, path);
  std::ostringstream text;
  text << std::cin.rdbuf();
  return text.str();
}

// Answers would take the place of the requests.
void refuse_same_file(const BatchFlags& flags) {
  std::error_code absent;
  if (std::filesystem::is_regular_file(flags.output, absent) &&
      std::filesystem::equivalent(flags.input, flags.output, absent))
    throw Error(ErrorKind::kInvalidArgument,
                "--output-file " + flags.output + ": is the file of requests");
}

// Sends every line to the server and writes the answers.
int answer_batch(const BatchFlags& flags, const std::vector<BatchLine>& lines, HttpClient& client) {
  std::ofstream output(flags.output, std::ios::binary);
  if (!output) throw Error(ErrorKind::kUnavailable, flags.output + ": cannot be written");
  const BatchCounts counts =
      run_batch_lines(client, lines, flags.max_concurrency,
                      [&](const std::string& line) { output << line << "\n"; });
  if (!output.flush()) throw Error(ErrorKind::kUnavailable, flags.output + ": cannot be written");
  std::fprintf(stderr, "%lld answered, %lld failed; written to %s\n",
               static_cast<long long>(counts.answered), static_cast<long long>(counts.failed),
               flags.output.c_str());
  return 0;
}

// The same server that `coppice serve` runs, on a port of loopback that nobody knows.
int answer_here(const BatchFlags& batch, const std::vector<BatchLine>& lines,
                std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "run-batch");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  ServeFlags flags;
  if (const auto code = flags.parse(static_cast<int>(argv.size()), argv.data())) return *code;
  flags.server.http.host = "127.0.0.1";
  flags.server.http.port = 0;
  Server server(flags.server);
  while (!server.wait_until_loaded(std::chrono::milliseconds(1000))) {
  }
  std::vector<std::pair<std::string, std::string>> headers;
  if (!flags.api_keys.empty()) headers = {{"x-api-key", flags.api_keys[0]}};
  HttpClient client(Url{.host = "127.0.0.1", .port = server.port(), .prefix = ""}, headers);
  return answer_batch(batch, lines, client);
}

}  // namespace

int run_batch(int argc, char** argv) {
  CLI::App app(
      "Answers a file of requests (OpenAI's batch format). Every flag of coppice serve works too.",
      "coppice run-batch");
  BatchFlags flags;
  app.add_option("-i,--input-file", flags.input, "JSONL; - is standard input")->required();
  app.add_option("-o,--output-file", flags.output, "answers as JSONL, in order")->required();
  app.add_option("--url", flags.url, "use a running server instead of loading a model");
  app.add_option("--api-key", flags.api_key, "of that server");
  app.add_option("--max-concurrency", flags.max_concurrency, "requests under way at once")
      ->check(CLI::Range(1, 100000));
  app.allow_extras();
  app.footer("coppice serve --help lists the flags of the model, which --url leaves no use for.");
  if (const auto code = parse_flags(app, argc, argv)) return *code;
  const std::vector<std::string> extra = app.remaining();
  if (!flags.url.empty() && !extra.empty())
    throw Error(ErrorKind::kInvalidArgument,
                extra.front() + ": not together with --url, whose server has its own flags");
  refuse_same_file(flags);
  const OutputFile output("", flags.output);  // refused before a model is loaded
  const std::vector<BatchLine> lines = read_batch(read_all(flags.input), flags.input);
  if (flags.url.empty()) return answer_here(flags, lines, extra);
  std::vector<std::pair<std::string, std::string>> headers;
  if (!flags.api_key.empty()) headers = {{"Authorization", "Bearer " + flags.api_key}};
  HttpClient client(parse_url(flags.url, "--url"), headers);
  return answer_batch(flags, lines, client);
}

}  // namespace coppice
