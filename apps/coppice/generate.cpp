// coppice generate MODEL: continues one prompt. --stats generates it three ways and compares.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <iterator>

#include "engine/model_text.h"
#include "io/text_file.h"
#include "parse_flags.h"
#include "text_session.h"
#include "verbs.h"

namespace coppice {
namespace {

struct GenerateFlags {
  SessionFlags session;
  std::string prompt;
  std::string prompt_file;
  bool chat = false;
  bool stats = false;
  int trace_tree = 0;  // rounds to draw
};

std::string read_prompt(const GenerateFlags& flags) {
  if (!flags.prompt.empty()) return flags.prompt;
  if (flags.prompt_file.empty())
    return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
  return read_text_file(flags.prompt_file, "--prompt-file " + flags.prompt_file);
}

std::vector<std::int32_t> chat_prompt(TextSession& session, const std::string& model,
                                      const std::string& text) {
  ChatInput input;
  input.messages = Json::array({Json::object({{"role", "user"}, {"content", text}})});
  return session.tokenizer().encode(load_chat_template(model).render(input));
}

void draw_rounds(TextSession& session, int rounds) {
  session.engine().set_round_observer([&session, left = rounds](const RoundTrace& trace) mutable {
    if (left-- <= 0) return;
    const auto text_of = [&](std::int32_t token) { return session.printable(token); };
    std::printf("\n-- round at position %lld: %lld nodes, %zu tokens --\n%s",
                static_cast<long long>(trace.position),
                static_cast<long long>(trace.tree.num_nodes()), trace.emitted.size(),
                draw_tree(trace.tree, trace.accepted, text_of).c_str());
  });
}

// One row of the --stats table.
struct Run {
  const char* name;
  SpeculativeConfig speculative;
  Completion completion;
  double seconds = 0;
  double idle_us = 0;  // of the device, between two rounds
};

void print_run(const Run& run, const Run& plain) {
  const RequestStats& stats = run.completion.stats;
  const double tokens = static_cast<double>(run.completion.token_ids.size());
  const double rounds = static_cast<double>(std::max<std::int64_t>(stats.num_rounds, 1));
  std::printf("%-14s %8.0f %8.0f %14.2f %10.1f %8.2fx %8.1f   %s\n", run.name, tokens, rounds,
              (tokens - 1) / rounds, tokens / run.seconds, plain.seconds / run.seconds, run.idle_us,
              run.completion.token_ids == plain.completion.token_ids ? "identical" : "DIFFERENT");
}

// Generates the prompt plainly, with the drafter's chain and with its tree. False if outputs
// differ.
bool compare_modes(TextSession& session, const SessionFlags& flags,
                   const std::vector<std::int32_t>& prompt) {
  SpeculativeConfig tree = flags.engine.speculative;
  tree.method = SpeculativeMethod::kDdtree;
  std::vector<Run> runs = {{"plain", {.method = SpeculativeMethod::kNone}, {}},
                           {"DFlash chain", {.method = SpeculativeMethod::kChain}, {}},
                           {"DDTree", tree, {}}};
  for (Run& run : runs) {
    session.engine().set_speculative(run.speculative);
    session.complete(prompt, flags.sampling, {});  // warms caches and the cost curve
    const EngineMetrics before = session.engine().metrics();
    const auto start = std::chrono::steady_clock::now();
    run.completion = session.complete(prompt, flags.sampling, {});
    run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const EngineMetrics& after = session.engine().metrics();
    run.idle_us = static_cast<double>(after.idle_ns - before.idle_ns) / 1e3 /
                  static_cast<double>(std::max<std::int64_t>(after.num_idle - before.num_idle, 1));
  }
  std::printf("\n%-14s %8s %8s %14s %10s %9s %8s   %s\n", "mode", "tokens", "rounds",
              "tokens/round", "tokens/s", "speed", "idle us", "output");
  bool identical = true;
  for (const Run& run : runs) {
    print_run(run, runs[0]);
    identical = identical && run.completion.token_ids == runs[0].completion.token_ids;
  }
  return identical;
}

}  // namespace

int run_generate(int argc, char** argv) {
  GenerateFlags flags;
  flags.session.sampling.temperature = 0;
  flags.session.sampling.max_tokens = 128;
  CLI::App app("Continues a prompt.", "coppice generate");
  flags.session.add_to(app);
  app.add_option("--prompt", flags.prompt, "text to continue; default: standard input");
  app.add_option("--prompt-file", flags.prompt_file, "file that holds the text")
      ->excludes("--prompt");
  app.add_flag("--chat", flags.chat, "the prompt is one user message: apply the chat template");
  app.add_flag("--stats", flags.stats,
               "generate plainly, by chain and by tree; compare tokens and speed");
  app.add_option("--trace-tree", flags.trace_tree, "draw the trees of the first rounds")
      ->expected(0, 1)
      ->check(CLI::Range(0, 1000000))
      ->default_str("3");
  if (const auto code = parse_flags(app, argc, argv)) return *code;
  flags.session.finish();
  if (flags.stats && flags.session.engine.speculative_model.empty())
    throw Error(ErrorKind::kInvalidArgument, "--stats: needs a drafter (--drafter DIR)");
  flags.session.engine.enable_prefix_caching = false;

  const std::string text = read_prompt(flags);
  TextSession session(flags.session);
  const std::vector<std::int32_t> prompt =
      flags.chat ? chat_prompt(session, flags.session.engine.model, text)
                 : session.tokenizer().encode_prompt(text);
  if (flags.trace_tree > 0) draw_rounds(session, flags.trace_tree);
  if (flags.trace_tree == 0) std::printf("%s", text.c_str());
  const Completion completion =
      session.complete(prompt, flags.session.sampling, [&](const std::string& piece) {
        if (flags.trace_tree > 0) return;
        std::fwrite(piece.data(), 1, piece.size(), stdout);
        std::fflush(stdout);
      });
  if (flags.trace_tree > 0) std::printf("\n%s%s", text.c_str(), completion.text.c_str());
  std::printf("\n");
  session.engine().set_round_observer({});
  if (completion.end_reason == EndReason::kError)
    throw Error(ErrorKind::kUnavailable,
                "the model's logits held NaN or infinity; generation ended");
  if (flags.stats && !compare_modes(session, flags.session, prompt)) return 1;
  return 0;
}

}  // namespace coppice
