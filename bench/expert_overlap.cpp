// How alike the rows of one tree choose their experts: distinct experts of a verify step, on real
// text, beside what independent choices would give.
//   bench_expert_overlap MODEL DRAFTER PROMPTS.safetensors... > overlap.json
// Prompts are tensors called token_ids. Trees of several budgets run on the CPU backend, 64 tokens
// each prompt; `coppice plan --expert-overlap FILE` reads the result.
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <vector>

#include "backend/cost/op_cost.h"
#include "backend/factory/make_backend.h"
#include "backend/trace/forwarding_backend.h"
#include "base/error.h"
#include "engine/engine.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "model/load_model.h"

namespace {

using namespace coppice;

// Rows of a step -> layers seen, and the experts that any of the rows chose, over those layers.
struct Count {
  std::int64_t layers = 0, experts = 0;
};
using Counts = std::map<std::int64_t, Count>;

class RoutingCounter final : public ForwardingBackend {
 public:
  RoutingCounter(std::unique_ptr<Backend> inner, Counts& counts)
      : ForwardingBackend(std::move(inner)), counts_(counts) {}

  void compile_tree(const CompileTreeArgs& args) override {
    inner_->compile_tree(args);
    verifying_ = true;
  }
  void accept_path(const AcceptPathArgs& args) override {
    verifying_ = false;
    inner_->accept_path(args);
  }
  void moe_block(const MoeBlockArgs& args) override {
    inner_->moe_block(args);
    if (verifying_) count(args.topk_ids);
  }

 private:
  // Rows of padding choose nobody: -1.
  void count(const Tensor& topk_ids) {
    const auto top_k = static_cast<std::size_t>(topk_ids.shape(1));
    std::vector<std::int32_t> ids(static_cast<std::size_t>(topk_ids.num_elements()));
    inner_->download(ids.data(), topk_ids);
    std::erase(ids, -1);
    Count& count = counts_[static_cast<std::int64_t>(ids.size() / top_k)];
    count.layers += 1;
    count.experts += std::ssize(std::set<std::int32_t>(ids.begin(), ids.end()));
  }

  Counts& counts_;
  bool verifying_ = false;
};

std::vector<std::int32_t> read_prompt(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  for (const TensorInfo& tensor : file.tensors()) {
    if (tensor.name != "token_ids") continue;
    std::vector<std::int32_t> ids(tensor.num_bytes / sizeof(std::int32_t));
    std::memcpy(ids.data(), file.file().bytes().data() + tensor.offset, tensor.num_bytes);
    return ids;
  }
  throw Error(ErrorKind::kBadFile, path.string() + ": no tensor 'token_ids'");
}

void run(const EngineConfig& config, const std::vector<std::vector<std::int32_t>>& prompts,
         Counts& counts) {
  static const SteadyClock kClock;
  EngineParts parts;
  parts.clock = &kClock;
  parts.backend = std::make_unique<RoutingCounter>(
      make_backend({.device = "cpu", .num_threads = config.num_threads}), counts);
  ModelOptions options{.max_rows = 512,
                       .max_positions = config.max_model_len,
                       .max_batch = config.max_num_seqs,
                       .draft_window = config.speculative.draft_window_size};
  parts.model = load_model(*parts.backend, config.model, options);
  parts.drafter_model =
      load_dflash_model(*parts.backend, config.speculative_model, *parts.model, options);
  Engine engine(config, std::move(parts));
  for (const std::vector<std::int32_t>& prompt : prompts) {
    SamplingParams sampling;
    sampling.temperature = 0;
    sampling.max_tokens = 64;
    sampling.ignore_eos = true;
    engine.add_request({.prompt_token_ids = prompt, .sampling = sampling},
                       [](const RequestOutput&) {});
    while (engine.step()) {
    }
  }
}

// Throws Error when no step was counted.
Json points_of(const Counts& counts, const ModelConfig& model) {
  Json points = Json::array();
  for (const auto& [rows, count] : counts) {
    constexpr std::int64_t kFewest = 100;  // layers: a rare size says little
    if (count.layers < kFewest || rows < 2) continue;
    const double distinct = static_cast<double>(count.experts) / static_cast<double>(count.layers);
    const auto k = static_cast<double>(model.num_experts_per_tok);
    const double uniform = distinct_experts(model.n_routed_experts, model.num_experts_per_tok,
                                            static_cast<double>(rows), 0);
    points.push_back(Json::object({{"rows", rows},
                                   {"layers", count.layers},
                                   {"distinct", distinct},
                                   {"uniform", uniform},
                                   {"overlap", 1 - (distinct - k) / (uniform - k)}}));
  }
  if (points.size() == 0)
    throw Error(ErrorKind::kUnavailable, "no step of 2 rows or more was counted often enough");
  return points;
}

int run_all(int argc, char** argv) {
  EngineConfig config;
  config.model = argv[1];
  config.speculative_model = argv[2];
  config.device = "cpu";
  config.num_threads = 1;
  config.max_model_len = 2048;
  config.max_num_seqs = 1;
  config.speculative.method = SpeculativeMethod::kDdtree;
  std::vector<std::vector<std::int32_t>> prompts;
  for (int i = 3; i < argc; ++i) prompts.push_back(read_prompt(argv[i]));
  Counts counts;
  for (const std::int64_t budget : {1, 3, 7, 16, 31, 63}) {
    config.speculative.ddtree_budget = budget;
    run(config, prompts, counts);
    std::fprintf(stderr, "trees of %ld nodes\n", static_cast<long>(budget));
  }
  const ModelConfig model = load_model_config(config.model);
  const Json report =
      Json::object({{"schema", "coppice-expert-overlap-1"},
                    {"model", std::filesystem::path(config.model).filename().string()},
                    {"prompts", std::ssize(prompts)},
                    {"n_routed_experts", model.n_routed_experts},
                    {"num_experts_per_tok", model.num_experts_per_tok},
                    {"points", points_of(counts, model)}});
  std::printf("%s\n", write_json(report, {.indent = 1}).c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: bench_expert_overlap MODEL DRAFTER PROMPTS.safetensors...\n");
    return 2;
  }
  try {
    return run_all(argc, argv);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return exit_code(error.kind());
  }
}
