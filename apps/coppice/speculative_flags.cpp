#include "speculative_flags.h"

#include <array>

#include "base/log.h"
#include "io/json_field.h"
#include "io/model_path.h"

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

// vLLM's keys that mean nothing here.
constexpr std::array kForeignKeys = {"draft_tensor_parallel_size",
                                     "quantization",
                                     "max_model_len",
                                     "revision",
                                     "code_revision",
                                     "disable_padded_drafter_batch",
                                     "disable_by_batch_size",
                                     "attention_backend",
                                     "draft_sample_method",
                                     "rejection_sample_method"};

void warn_of_foreign_keys(Json& document) {
  if (!document.is_object()) return;
  for (const char* key : kForeignKeys)
    if (document.erase(key))
      log_warning(std::string("--speculative-config: '") + key +
                  "' has no effect here and is ignored");
}

// The nodes of a tree, by whichever of its names.
std::optional<JsonField> find_budget(const JsonField& json) {
  std::optional<JsonField> found;
  for (const char* key : {"ddtree_budget", "ddtree_size", "tree_budget"}) {
    const auto budget = json.find(key);
    if (budget && found) budget->fail("says again what '" + found->path() + "' says");
    if (budget) found.emplace(*budget);
  }
  return found;
}

// vLLM's --speculative-config.
void apply_json(const std::string& text, EngineConfig& engine) {
  Json document =
      parse_json(text, "--speculative-config", {.error_kind = ErrorKind::kInvalidArgument});
  warn_of_foreign_keys(document);
  const JsonField json(document, "--speculative-config", ErrorKind::kInvalidArgument);
  json.allow_only({"method", "model", "num_speculative_tokens", "ddtree_budget", "ddtree_size",
                   "tree_budget", "draft_window_size", "draft_attention_factor",
                   "prompt_lookup_min", "prompt_lookup_max"});
  SpeculativeConfig& speculative = engine.speculative;
  engine.speculative_model = json.get("model", "");
  speculative.method = parse_speculative_method(json.get("method", "ddtree"));
  speculative.num_speculative_tokens =
      json.get<std::int64_t>("num_speculative_tokens", speculative.num_speculative_tokens);
  speculative.prompt_lookup_min =
      json.get<std::int64_t>("prompt_lookup_min", speculative.prompt_lookup_min);
  speculative.prompt_lookup_max =
      json.get<std::int64_t>("prompt_lookup_max", speculative.prompt_lookup_max);
  speculative.draft_window_size =
      json.get<std::int64_t>("draft_window_size", speculative.draft_window_size);
  if (const auto factor = json.find("draft_attention_factor"))
    speculative.draft_attention_factor = factor->as<double>();
  const std::optional<JsonField> budget = find_budget(json);
  if (!budget) return;
  // The fork that introduced ddtree_size calls its method dflash.
  if (speculative.method == SpeculativeMethod::kChain)
    speculative.method = SpeculativeMethod::kDdtree;
  speculative.ddtree_budget = budget->value().is_string()
                                  ? parse_budget(budget->as<std::string>(), budget->path())
                                  : budget->as<std::int64_t>();
}

}  // namespace

void SpeculativeFlags::add_to(CLI::App& app) {
  app.add_option("--speculative-config", config,
                 "JSON as in vLLM: method, model, ddtree_budget ...");
  app.add_option("--spec-model,--drafter,--speculative-draft-model-path", drafter,
                 "folder of the DFlash drafter");
  app.add_option("--spec-method,--speculative-algorithm", method, "none, chain, ddtree or ngram");
  app.add_option("--spec-tokens", num_tokens, "chain, ngram: tokens a round; 0: the longest");
  app.add_option("--ddtree-budget,--speculative-ddtree-budget", budget,
                 "nodes of a tree without its root, or auto");
  app.add_option("--speculative-draft-window-size", draft_window_size,
                 "context that the drafter reads; 0: all (default 4096)");
  app.add_option("--draft-attention-factor", draft_attention_factor,
                 "amplitude of the drafter's rotary embedding in place of its file's");
}

void SpeculativeFlags::apply(EngineConfig& engine) const {
  if (!config.empty()) apply_json(config, engine);
  if (!drafter.empty()) {
    engine.speculative_model = drafter;
    if (config.empty()) engine.speculative.method = SpeculativeMethod::kDdtree;
  }
  if (!method.empty()) engine.speculative.method = parse_speculative_method(method);
  if (!budget.empty()) engine.speculative.ddtree_budget = parse_budget(budget, "--ddtree-budget");
  if (num_tokens > 0) engine.speculative.num_speculative_tokens = num_tokens;
  if (draft_window_size) engine.speculative.draft_window_size = *draft_window_size;
  if (draft_attention_factor) engine.speculative.draft_attention_factor = draft_attention_factor;
  if (!engine.speculative_model.empty())
    engine.speculative_model = resolve_model(engine.speculative_model).string();
}

}  // namespace coppice
