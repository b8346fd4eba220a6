// coppice chat MODEL: a conversation in the terminal. Empty line or end of input leaves.
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <iostream>
#include <string>

#include "engine/model_text.h"
#include "parse_flags.h"
#include "text_session.h"
#include "verbs.h"

namespace coppice {
namespace {

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  return parts;
}

bool read_line(std::string& line) {
  if (isatty(STDIN_FILENO) == 1) {
    std::printf("> ");
    std::fflush(stdout);
  }
  return static_cast<bool>(std::getline(std::cin, line)) && !line.empty();
}

void print_rate(const RequestStats& stats) {
  const double seconds = static_cast<double>(stats.end_ns - stats.first_token_ns) / 1e9;
  if (seconds <= 0 || stats.num_rounds == 0) return;
  const double tokens = static_cast<double>(stats.num_output_tokens - 1);
  std::fprintf(stderr, "[%lld tokens, %.1f tokens/s, %.2f tokens a round]\n",
               static_cast<long long>(stats.num_output_tokens), tokens / seconds,
               tokens / static_cast<double>(stats.num_rounds));
}

}  // namespace

int run_chat(int argc, char** argv) {
  SessionFlags flags;
  flags.sampling.temperature = 0.6;
  flags.sampling.max_tokens = 1024;
  std::string system;
  bool no_thinking = false;
  CLI::App app("Talks to a model. An empty line ends the conversation.", "coppice chat");
  flags.add_to(app);
  app.add_option("--system", system, "system message");
  app.add_flag("--no-thinking", no_thinking, "ask the template for answers without reasoning");
  if (const auto code = parse_flags(app, argc, argv)) return *code;
  flags.finish();

  TextSession session(flags);
  const ChatTemplate chat_template = load_chat_template(flags.engine.model);
  ChatInput input;
  input.messages = Json::array();
  input.kwargs = Json::object({{"thinking", !no_thinking}});
  if (!system.empty())
    input.messages.push_back(Json::object({{"role", "system"}, {"content", system}}));
  std::string line;
  while (read_line(line)) {
    input.messages.push_back(Json::object({{"role", "user"}, {"content", line}}));
    input.now = local_time();
    const std::vector<std::int32_t> prompt =
        session.tokenizer().encode(chat_template.render(input));
    const Completion completion =
        session.complete(prompt, flags.sampling, [](const std::string& piece) {
          std::fwrite(piece.data(), 1, piece.size(), stdout);
          std::fflush(stdout);
        });
    std::printf("\n");
    if (completion.end_reason == EndReason::kError)
      throw Error(ErrorKind::kUnavailable, "the model's logits held NaN or infinity");
    if (!flags.quiet) print_rate(completion.stats);
    // Only the answer goes into the history: templates drop earlier reasoning anyway.
    const std::string mark = "</think>";
    const std::size_t thought = completion.text.rfind(mark);
    input.messages.push_back(
        Json::object({{"role", "assistant"},
                      {"content", thought == std::string::npos
                                      ? completion.text
                                      : completion.text.substr(thought + mark.size())}}));
  }
  return 0;
}

}  // namespace coppice
