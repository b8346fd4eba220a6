// coppice plan MODEL_OR_CONFIG --gpu NAME: does it fit, how fast is it, what limits it.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "io/model_path.h"
#include "model/load_model.h"
#include "output_file.h"
#include "parse_flags.h"
#include "planner/judge.h"
#include "planner/plan.h"
#include "planner/round_file.h"
#include "verbs.h"

namespace coppice {
namespace {

constexpr std::int64_t kUsualContext = 8192;  // or what the model has

struct PlanFlags {
  PlanRequest request{.contexts = {kUsualContext}};
  std::string gpus = "h200";
  std::string budget = "auto";
  std::string overlap = "0";
  std::string kv_dtype = "auto";
  std::string calibration, judge, judge_memory, json, html;
};

// A folder, a hub id, or a config.json by itself.
std::filesystem::path model_folder(const std::string& model) {
  std::filesystem::path path = resolve_model(model);
  if (path.filename() == "config.json") return path.parent_path();
  if (std::filesystem::is_regular_file(path) && path.extension() != ".gguf")
    throw Error(ErrorKind::kInvalidArgument,
                "plan: '" + model + "' is neither a folder nor a config.json nor a GGUF file");
  return path;
}

// Routed experts that are not INT4 group 32 would be converted (coppice quantize).
void read_target(PlanRequest& request) {
  request.expert_format = WeightFormat::kInt4Group32;
  const bool published = request.model == "kimi-k2" && !std::filesystem::exists(request.model);
  request.target =
      published ? kimi_k2_config(61, 384) : load_model_config(model_folder(request.model).string());
}

void read_drafter(PlanRequest& request) {
  if (request.drafter.empty()) return;
  request.drafter_config = request.drafter == "kimi-k2-dflash"
                               ? kimi_k2_dflash_config(request.target)
                               : load_dflash_config(model_folder(request.drafter).string());
}

std::int64_t parse_budget(const std::string& text) {
  if (text == "auto") return kAutoBudget;
  char* stop = nullptr;
  const long value = std::strtol(text.c_str(), &stop, 10);
  if (text.empty() || *stop != '\0' || value < 0 || value > 1024)
    throw Error(ErrorKind::kInvalidArgument,
                "--budget: '" + text + "' is neither auto nor a number from 0 to 1024");
  return value;
}

void add_flags(CLI::App& app, PlanFlags& flags) {
  PlanRequest& request = flags.request;
  app.add_option("model", request.model,
                 "folder, config.json, GGUF file, hub id, or kimi-k2 for its shapes");
  app.add_option("--gpu", flags.gpus, "names with commas, or all")->capture_default_str();
  app.add_option("--tp,--tensor-parallel-size", request.num_ranks,
                 "GPUs that share the model (also -tp)")
      ->check(CLI::Range(1, 64));
  app.add_option("--drafter,--spec-model", request.drafter,
                 "DFlash drafter: folder, config.json, hub id, or kimi-k2-dflash");
  app.add_option("--batch", request.batches, "sequences at once, with commas")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--context", request.contexts, "cached tokens of each, with commas")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  app.add_option("--budget", flags.budget, "tree nodes: auto, or a number")->capture_default_str();
  app.add_option("--acceptance", request.acceptance,
                 "coding, chat, tiny-k2, or probabilities by depth: 0.9:0.85:0.8")
      ->capture_default_str();
  app.add_option("--expert-overlap", flags.overlap,
                 "share of the growth in distinct experts that does not happen: 0 uniform, 1 none; "
                 "or a file of bench_expert_overlap")
      ->capture_default_str();
  app.add_option("--kv-cache-dtype", flags.kv_dtype, "auto (bf16) or fp8")
      ->check(CLI::IsMember({"auto", "bf16", "fp8"}));
  app.add_option("--gpu-memory-utilization", request.memory_utilization,
                 "share of the memory that may be used")
      ->check(CLI::Range(0.1, 1.0))
      ->capture_default_str();
  app.add_option("--host-us", request.host_us, "host time of a round; default: from its launches")
      ->check(CLI::Range(0, 1000000));
  app.add_option("--calibration", flags.calibration,
                 "JSON of coppice bench kernels or coppice bench round");
  app.add_option("--json", flags.json, "write the plan to this file");
  app.add_option("--html", flags.html, "write a report with figures to this file");
  app.add_option("--judge", flags.judge,
                 "JSON of coppice bench round: calibrate on a part of it, compare with the rest");
  app.add_option("--judge-memory", flags.judge_memory,
                 "JSON of coppice bench round: compare its memory only");
}

// A report says itself what was measured: nothing that makes a plan has an effect.
void refuse_beside_judging(const CLI::App& app) {
  for (const char* judging : {"--judge", "--judge-memory"})
    for (const CLI::Option* option : app.get_options())
      if (app.count(judging) > 0 && option->count() > 0 && !option->check_name(judging))
        throw Error(ErrorKind::kInvalidArgument,
                    std::string(judging) + ": not together with " + option->get_name());
}

}  // namespace

int run_plan(int argc, char** argv) {
  PlanFlags flags;
  CLI::App app("Does a model fit a machine, how fast is it there, and what limits it.",
               "coppice plan");
  add_flags(app, flags);
  if (const auto code = parse_flags(app, argc, argv)) return *code;
  refuse_beside_judging(app);
  if (!flags.judge.empty()) {
    const Judgement judgement = judge(flags.judge);
    const std::string text = judgement_as_text(judgement) + "\n" +
                             memory_as_text(judgement.memory) + "\n" + spread_as_text(judgement);
    std::fputs(text.c_str(), stdout);
    return 0;
  }
  if (!flags.judge_memory.empty()) {
    std::fputs(memory_as_text(judge_memory(read_round_file(flags.judge_memory))).c_str(), stdout);
    return 0;
  }
  PlanRequest& request = flags.request;
  if (request.model.empty())
    throw Error(ErrorKind::kInvalidArgument,
                "plan: needs a model (a folder, a config.json, kimi-k2)");
  request.devices = find_devices(flags.gpus);
  if (!flags.json.empty() && flags.json == flags.html)
    throw Error(ErrorKind::kInvalidArgument, "--json and --html name one file: " + flags.json);
  request.budget = parse_budget(flags.budget);
  request.expert_overlap = ExpertOverlap::parse(flags.overlap);
  request.kv_dtype = flags.kv_dtype == "fp8" ? DType::kF8E4M3 : DType::kBF16;
  read_target(request);
  if (app.count("--context") == 0)
    request.contexts = {std::min(kUsualContext, request.target.max_position_embeddings)};
  read_drafter(request);
  const RoundTimes times = flags.calibration.empty() ? RoundTimes(KernelTimes::shipped())
                                                     : times_from_file(flags.calibration);
  const OutputFile json("--json", flags.json), html("--html", flags.html);
  const Plan plan = make_plan(request, times);
  json.write(write_json(plan_as_json(plan), {.indent = 1}) + "\n");
  html.write(plan_as_html(plan));
  const std::string text = plan_as_text(plan);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

}  // namespace coppice
