#include "text_session.h"

#include <cstdio>

#include "engine/model_text.h"
#include "io/model_path.h"
#include "progress_bar.h"
#include "sampling/stop_strings.h"
#include "text/detokenizer.h"

namespace coppice {

void SessionFlags::add_to(CLI::App& app) {
  app.add_option("model,--model,--model-path", engine.model, "model folder, GGUF file or hub id")
      ->required();
  speculative.add_to(app);
  app.add_option("--device", engine.device, "auto, cpu, cpu-reference, cuda or cuda:N");
  app.add_option("--threads", engine.num_threads, "CPU threads; 0: all that may be used");
  app.add_option("--tp,--tensor-parallel-size", engine.tensor_parallel_size,
                 "GPUs, or parts of the CPU threads, that share the model (also -tp)");
  app.add_option("--max-model-len,--context-length", engine.max_model_len,
                 "longest sequence; 0: the model's own");
  app.add_flag("--enforce-eager", engine.enforce_eager, "GPU: no captured rounds, to compare");
  app.add_option("--rounds-ahead", engine.max_rounds_ahead,
                 "rounds launched before results are read; -1: chosen")
      ->capture_default_str();
  app.add_option("--max-tokens", sampling.max_tokens, "tokens to generate")->capture_default_str();
  app.add_option("--temperature", sampling.temperature, "0 is greedy")->capture_default_str();
  app.add_option("--top-k", sampling.top_k, "sample from so many; 0: all");
  app.add_option("--top-p", sampling.top_p, "sample from this share of the probability");
  app.add_option("--min-p", sampling.min_p, "sample from what has this share of the best");
  app.add_option("--repetition-penalty", sampling.repetition_penalty,
                 "divides what was there; 1: none");
  app.add_option("--presence-penalty", sampling.presence_penalty, "off what was generated");
  app.add_option("--frequency-penalty", sampling.frequency_penalty,
                 "off for each time it was generated");
  app.add_option("--seed", sampling.seed, "of the noise");
  app.add_option("--stop", sampling.stop, "stop strings");
  app.add_flag("--ignore-eos", sampling.ignore_eos, "generate until --max-tokens");
  app.add_flag("--quiet", quiet, "no progress on stderr");
}

void SessionFlags::finish() {
  engine.capture_at_start = true;
  speculative.apply(engine);
  engine.model = resolve_model(engine.model).string();
}

TextSession::TextSession(const SessionFlags& flags)
    : tokenizer_(load_tokenizer(flags.engine.model)) {
  ProgressBar bar("loading", flags.quiet);
  engine_ = Engine::load(flags.engine,
                         [&](std::int64_t done, std::int64_t total) { bar.update(done, total); });
  if (!flags.quiet) std::fprintf(stderr, "%s\n", engine_->describe().c_str());
}

Completion TextSession::complete(const std::vector<std::int32_t>& prompt,
                                 const SamplingParams& sampling,
                                 const std::function<void(const std::string&)>& on_text) {
  Completion completion;
  Detokenizer detokenizer(tokenizer_, /*skip_special=*/true);
  StopStrings stop(sampling.stop);
  bool stopped = false;  // by a stop string
  const auto show = [&](const std::string& text) {
    completion.text += text;
    if (on_text && !text.empty()) on_text(text);
  };
  engine_->add_request({.prompt_token_ids = prompt, .sampling = sampling},
                       [&](const RequestOutput& output) {
                         for (const std::int32_t token : output.token_ids) {
                           completion.token_ids.push_back(token);
                           const StopStrings::Result result = stop.push(detokenizer.add(token));
                           show(result.text);
                           if (!result.stopped) continue;
                           stopped = true;
                           engine_->finish(output.id, std::ssize(completion.token_ids));
                           break;
                         }
                         completion.stats = *output.stats;
                         if (output.end_reason != EndReason::kNone)
                           completion.end_reason = output.end_reason;
                       });
  while (engine_->step()) {
  }
  if (stopped) {
    completion.end_reason = EndReason::kStop;
    return completion;
  }
  show(stop.push(detokenizer.finish()).text);
  show(stop.flush());
  return completion;
}

std::string TextSession::printable(std::int32_t token) const {
  std::string text;
  for (const char c : tokenizer_.token_bytes(token)) {
    if (c == '\n')
      text += "\\n";
    else if (c == '\t')
      text += "\\t";
    else if (static_cast<unsigned char>(c) < 0x20)
      text += '?';
    else
      text += c;
  }
  return text;
}

}  // namespace coppice
