#include "text_session.h"

#include <cstdio>

#include "engine/model_text.h"
#include "io/json_field.h"
#include "io/model_path.h"
#include "progress_bar.h"
#include "sampling/stop_strings.h"
#include "text/detokenizer.h"

namespace coppice {
namespace {

std::int64_t parse_budget(const std::string& text, const std::string& flag) {
  if (text == "auto") return kAutoBudget;
  std::size_t used = 0;
  try {
    const long long value = std::stoll(text, &used);
    if (used == text.size() && value >= 0) return value;
  } catch (const std::exception&) {
  }
  throw Error(ErrorKind::kInvalidArgument,
              flag + ": '" + text + "' is neither auto nor a number of nodes");
}

// vLLM's --speculative-config: {"method", "model", "num_speculative_tokens", "ddtree_budget" (or
// ddtree_size)}.
void apply_speculative_json(const std::string& text, EngineConfig& config) {
  const Json document =
      parse_json(text, "--speculative-config", {.error_kind = ErrorKind::kInvalidArgument});
  const JsonField json(document, "--speculative-config", ErrorKind::kInvalidArgument);
  SpeculativeConfig& speculative = config.speculative;
  speculative.method = parse_speculative_method(json.get("method", "ddtree"));
  config.speculative_model = json.get("model", "");
  speculative.num_speculative_tokens =
      json.get<std::int64_t>("num_speculative_tokens", speculative.num_speculative_tokens);
  speculative.prompt_lookup_min =
      json.get<std::int64_t>("prompt_lookup_min", speculative.prompt_lookup_min);
  speculative.prompt_lookup_max =
      json.get<std::int64_t>("prompt_lookup_max", speculative.prompt_lookup_max);
  for (const char* key : {"ddtree_budget", "ddtree_size", "tree_budget"}) {
    const auto budget = json.find(key);
    if (!budget) continue;
    speculative.ddtree_budget = budget->value().is_string()
                                    ? parse_budget(budget->as<std::string>(), budget->path())
                                    : budget->as<std::int64_t>();
  }
}

}  // namespace

void SessionFlags::add_to(CLI::App& app) {
  app.add_option("model,--model,--model-path", engine.model, "model folder, GGUF file or hub id")
      ->required();
  app.add_option("--speculative-config", speculative_config,
                 "JSON as in vLLM: method, model, ddtree_budget ...");
  app.add_option("--drafter,--spec-model,--speculative-draft-model-path", engine.speculative_model,
                 "folder of the DFlash drafter");
  app.add_option("--spec-method,--speculative-algorithm", method, "none, chain, ddtree or ngram");
  app.add_option("--ddtree-budget,--speculative-ddtree-budget", budget,
                 "nodes of a tree without its root, or auto");
  app.add_option("--device", engine.device, "auto, cpu, cpu-reference, cuda or cuda:N");
  app.add_option("--threads", engine.num_threads, "CPU threads; 0: all that may be used");
  app.add_option("--max-model-len,--context-length", engine.max_model_len,
                 "longest sequence; 0: the model's own");
  app.add_option("--max-tokens", sampling.max_tokens, "tokens to generate")->capture_default_str();
  app.add_option("--temperature", sampling.temperature, "0 is greedy")->capture_default_str();
  app.add_option("--top-k", sampling.top_k);
  app.add_option("--top-p", sampling.top_p);
  app.add_option("--min-p", sampling.min_p);
  app.add_option("--repetition-penalty", sampling.repetition_penalty);
  app.add_option("--presence-penalty", sampling.presence_penalty);
  app.add_option("--frequency-penalty", sampling.frequency_penalty);
  app.add_option("--seed", sampling.seed);
  app.add_option("--stop", sampling.stop, "stop strings");
  app.add_flag("--ignore-eos", sampling.ignore_eos);
  app.add_flag("--quiet", quiet, "no progress on stderr");
}

void SessionFlags::finish() {
  if (!engine.speculative_model.empty()) engine.speculative.method = SpeculativeMethod::kDdtree;
  if (!speculative_config.empty()) apply_speculative_json(speculative_config, engine);
  if (!method.empty()) engine.speculative.method = parse_speculative_method(method);
  if (!budget.empty()) engine.speculative.ddtree_budget = parse_budget(budget, "--ddtree-budget");
  engine.model = resolve_model(engine.model).string();
  if (!engine.speculative_model.empty())
    engine.speculative_model = resolve_model(engine.speculative_model).string();
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
                           engine_->finish(output.id, std::ssize(completion.token_ids));
                           break;
                         }
                         completion.stats = *output.stats;
                         if (output.end_reason != EndReason::kNone)
                           completion.end_reason = output.end_reason;
                       });
  while (engine_->step()) {
  }
  if (completion.end_reason != EndReason::kStop || sampling.stop.empty())
    show(stop.push(detokenizer.finish()).text + stop.flush());
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
