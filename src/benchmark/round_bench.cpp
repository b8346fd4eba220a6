#include "benchmark/round_bench.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <numeric>
#include <random>

#include "base/error.h"
#include "benchmark/peers.h"
#include "benchmark/point_bench.h"

namespace coppice {
namespace {

std::string format(const char* text, ...) __attribute__((format(printf, 1, 2)));
std::string format(const char* text, ...) {
  char line[320];
  va_list arguments;
  va_start(arguments, text);
  std::vsnprintf(line, sizeof(line), text, arguments);
  va_end(arguments);
  return line;
}

std::int64_t largest(const std::vector<std::int64_t>& values) {
  return *std::max_element(values.begin(), values.end());
}

// The networks, and how much memory each part of them took.
struct Networks {
  std::unique_ptr<Model> model;
  std::unique_ptr<DflashModel> drafter;
  Buffer features_buffer;
  Tensor context_features;  // of the commits of all points
  Buffer past_cache;        // read between replays: nothing of them stays in the cache
  std::int64_t runtime_bytes = 0, weights_bytes = 0, drafter_bytes = 0;
};

class RoundBench {
 public:
  RoundBench(RoundTracer& backend, DeviceMeter& meter, const NetworkShape& network,
             const RoundBenchOptions& options, const RoundBenchObserver& observer)
      : backend_(backend),
        meter_(meter),
        network_(network),
        options_(options),
        observer_(observer),
        ceiling_(measure_ceiling(backend, meter)) {}

  Json run();

 private:
  void check_points() const;
  Json report() const;
  void make_networks();
  Json describe_model() const;
  std::vector<RoundPoint> points() const;
  std::unique_ptr<PointBench> open(const RoundPoint& point, bool graph);
  Tensor past_cache() const;
  void add(const PointBench& point);
  void interleave();
  void one_by_one();

  RoundTracer& backend_;
  DeviceMeter& meter_;
  NetworkShape network_;
  RoundBenchOptions options_;
  RoundBenchObserver observer_;
  DeviceCeiling ceiling_;
  Networks networks_;
  Json rounds_ = Json::array();
  std::int32_t num_opened_ = 0;
};

void RoundBench::check_points() const {
  for (const std::int64_t batch : options_.batches)
    for (const std::int64_t rows : options_.rows)
      if (batch < 1 || rows < batch || rows % batch != 0)
        throw Error(
            ErrorKind::kInvalidArgument,
            "--rows " + std::to_string(rows) + ": no multiple of --batch " + std::to_string(batch));
  // Every repeat settles a token at least.
  const std::int64_t most = kRoundSlack - options_.repeats;
  for (const std::int64_t batch : options_.batches)
    for (const std::int64_t rows : options_.rows)
      if (rows / batch > most)
        throw Error(ErrorKind::kInvalidArgument,
                    "--rows " + std::to_string(rows) + ": a tree has room for " +
                        std::to_string(most) + " rows of a sequence with --repeats " +
                        std::to_string(options_.repeats));
}

void RoundBench::make_networks() {
  const ModelConfig config = model_config_of(network_, options_.num_layers);
  const bool drafting =
      largest(options_.rows) > *std::min_element(options_.batches.begin(), options_.batches.end());
  constexpr std::int64_t kBlock = 8;  // rows of a sequence in a draft
  const ModelOptions options = {
      .max_rows = std::max(largest(options_.rows), largest(options_.batches) * kBlock),
      .max_positions = largest(options_.contexts) + kRoundSlack,
      .parallel = {.rank = options_.rank, .size = options_.meet ? options_.num_ranks : 1},
      .max_batch = largest(options_.batches),
      .draft_window = 4096};
  const std::int64_t before = meter_.facts().free_bytes;
  networks_.runtime_bytes = meter_.facts().memory_bytes - before;
  networks_.model = make_random_target(backend_, meter_, config, options);
  const std::int64_t after = meter_.facts().free_bytes;
  networks_.weights_bytes = before - after;
  if (backend_.device() != Device::kCpu)
    networks_.past_cache =
        backend_.allocate(2 * static_cast<std::size_t>(meter_.facts().cache_bytes));
  if (!drafting) return;
  const std::int64_t without_drafter = meter_.facts().free_bytes;
  networks_.drafter =
      make_random_drafter(backend_, meter_, drafter_config_of(network_, options_.num_ranks, config),
                          options_.num_ranks, *networks_.model, options);
  networks_.drafter_bytes = without_drafter - meter_.facts().free_bytes;
  const DflashConfig& drafter = networks_.drafter->config();
  const std::int64_t most_rows = largest(options_.batches) * (drafter.block_size + 1);
  const std::int64_t width = drafter.feature_size();
  const DType dtype = backend_.activation_dtype();
  networks_.features_buffer =
      backend_.allocate(static_cast<std::size_t>(most_rows * width) * size_of(dtype));
  networks_.context_features = networks_.features_buffer.tensor(dtype, {most_rows, width});
}

Json RoundBench::describe_model() const {
  const ModelConfig c = model_config_of(network_, options_.num_layers);
  Json json = Json::object({{"layers", c.num_hidden_layers},
                            {"tp", options_.num_ranks},
                            {"all_ranks", static_cast<bool>(options_.meet)},
                            {"network", network_.name},
                            {"moe_block", true},
                            {"hidden_size", c.hidden_size},
                            {"num_heads", c.num_attention_heads},
                            {"n_routed_experts", c.n_routed_experts},
                            {"num_experts_per_tok", c.num_experts_per_tok},
                            {"moe_intermediate_size", c.moe_intermediate_size},
                            {"intermediate_size", c.intermediate_size},
                            {"q_lora_rank", c.q_lora_rank},
                            {"kv_lora_rank", c.kv_lora_rank},
                            {"qk_nope_head_dim", c.qk_nope_head_dim},
                            {"qk_rope_head_dim", c.qk_rope_head_dim},
                            {"v_head_dim", c.v_head_dim},
                            {"vocab_size", c.vocab_size}});
  if (networks_.drafter == nullptr) return json;
  const DflashConfig d = drafter_config_of(network_, options_.num_ranks, c);
  json["drafter"] = Json::object({{"layers", d.network.num_hidden_layers},
                                  {"block_size", d.block_size},
                                  {"fc_ranks", options_.num_ranks},
                                  {"num_heads", d.network.num_attention_heads},
                                  {"num_kv_heads", d.network.num_key_value_heads},
                                  {"head_dim", d.network.head_dim},
                                  {"intermediate_size", d.network.intermediate_size},
                                  {"window", 4096}});
  return json;
}

std::string table_head() {
  return format(
      "%7s %5s %4s %-5s %9s %7s %8s %6s %6s %8s | %8s %8s %8s %7s %6s %6s %6s | %6s %6s %8s %8s\n",
      "context", "batch", "rows", "mode", "total us", "+-", "draft", "build", "compile", "verify",
      "attn", "experts", "dense", "lm_head", "norms", "ranks", "sample", "commit", "host",
      "overhead", "peers");
}

std::string table_line(const Json& r) {
  const auto number = [](const Json& json, const char* key) { return json.find(key)->as_double(); };
  const Json &s = *r.find("stages"), &v = *r.find("verify");
  return format(
      "%7.0f %5.0f %4.0f %-5s %9.1f %7.1f %8.1f %6.1f %6.1f %8.1f | %8.1f %8.1f %8.1f %7.1f %6.1f "
      "%6.1f %6.1f | %6.1f %6.1f %7.1f%% %8s\n",
      number(r, "context"), number(r, "batch"), number(r, "rows"),
      r.find("mode")->as_string().c_str(), number(r, "total_us"),
      (number(r, "total_us_max") - number(r, "total_us_min")) / 2, number(s, "draft"),
      number(s, "tree_build"), number(s, "compile"), number(s, "verify"), number(v, "attention"),
      number(v, "experts"), number(v, "dense"), number(v, "lm_head"), number(v, "norms"),
      number(v, "ranks"), number(v, "sampling"), number(s, "commit"), number(s, "host"),
      100 * number(r, "overhead"),
      r.find("peer")->is_null() ? "-" : format("%.1f", number(r, "peer_us")).c_str());
}

std::vector<RoundPoint> RoundBench::points() const {
  std::vector<RoundPoint> points;
  for (const std::int64_t context : options_.contexts)
    for (const std::int64_t batch : options_.batches)
      for (const std::int64_t rows : options_.rows)
        points.push_back({.context = context, .batch = batch, .rows = rows});
  return points;
}

Tensor RoundBench::past_cache() const {
  if (backend_.device() == Device::kCpu) return {};
  return networks_.past_cache.tensor(DType::kU8, {2 * meter_.facts().cache_bytes});
}

std::unique_ptr<PointBench> RoundBench::open(const RoundPoint& point, bool graph) {
  observer_.progress(
      format("context %lld, batch %lld, rows %lld", static_cast<long long>(point.context),
             static_cast<long long>(point.batch), static_cast<long long>(point.rows)));
  return std::make_unique<PointBench>(backend_, meter_,
                                      BenchNetworks{.model = networks_.model.get(),
                                                    .drafter = networks_.drafter.get(),
                                                    .context_features = networks_.context_features,
                                                    .meet = options_.meet,
                                                    .past_cache = past_cache()},
                                      point, graph, num_opened_++, ceiling_.node_us);
}

void RoundBench::add(const PointBench& point) {
  Json result = point.result();
  const auto text = [&](const char* field) { return std::to_string(result.find(field)->as_int()); };
  const PeerTime peer =
      fastest_peer(options_.peers, "step of " + std::to_string(options_.num_layers) + " layers " +
                                       network_.name + " L=" + text("context") +
                                       " B=" + text("batch") + " M=" + text("rows"));
  result["peer"] = peer.us > 0 ? Json(peer.name) : Json();
  result["peer_us"] = peer.us > 0 ? Json(peer.us) : Json();
  observer_.line(table_line(result));
  rounds_.push_back(std::move(result));
  observer_.report(report());
}

// All points stay open, and every run goes through them in an order and in places of its own: what
// drifts hits all of them alike, and no point keeps a place that is better or worse than others.
void RoundBench::interleave() {
  const std::vector<RoundPoint> all = points();
  std::vector<std::size_t> order(all.size());
  std::iota(order.begin(), order.end(), 0);
  // Many rows first: the kernels' workspaces then grow once.
  std::ranges::stable_sort(order, std::greater(), [&](std::size_t i) { return all[i].rows; });
  std::vector<std::unique_ptr<PointBench>> opened(all.size());
  for (const std::size_t i : order) opened[i] = open(all[i], true);
  std::mt19937 random(1);
  for (int run = 0; run < options_.runs; ++run) {
    observer_.progress(format("run %d of %d", run + 1, options_.runs));
    std::ranges::shuffle(order, random);
    const bool moves = run > 0 && !options_.meet;  // ranks do not allocate while others run
    if (moves) backend_.forget_graphs();           // those of the places before
    for (const std::size_t i : order) {
      if (moves) opened[i]->move();
      opened[i]->run(options_.repeats);
    }
  }
  for (const auto& point : opened) add(*point);
  backend_.forget_graphs();
}

void RoundBench::one_by_one() {
  for (const RoundPoint& point : points())
    for (const bool graph : {true, false}) {
      if (!graph && !options_.eager) continue;
      const auto opened = open(point, graph);
      opened->run(options_.repeats);
      add(*opened);
      backend_.forget_graphs();
    }
}

Json RoundBench::run() {
  check_points();
  observer_.progress("weights");
  make_networks();
  observer_.line(format(
      "read ceiling %.0f GB/s, one node %.2f us; weights %.2f GB, drafter %.2f GB\n",
      ceiling_.read_gb_per_s, ceiling_.node_us, static_cast<double>(networks_.weights_bytes) * 1e-9,
      static_cast<double>(networks_.drafter_bytes) * 1e-9));
  observer_.line(table_head());
  options_.runs > 1 ? interleave() : one_by_one();
  return report();
}

Json RoundBench::report() const {
  Json json = describe_run(backend_, meter_, ceiling_, "coppice-bench-round-1", options_.command);
  json["model"] = describe_model();
  json["memory"] = Json::object({{"runtime_bytes", networks_.runtime_bytes},
                                 {"weights_bytes", networks_.weights_bytes},
                                 {"drafter_bytes", networks_.drafter_bytes}});
  json["rounds"] = rounds_;
  return json;
}

}  // namespace

Json run_round_bench(std::unique_ptr<Backend> backend, DeviceMeter& meter,
                     const RoundBenchOptions& options, const RoundBenchObserver& observer) {
  const NetworkShape network = backend->device() == Device::kCpu || options.tiny
                                   ? tiny_shape()
                                   : kimi_k2_shape(options.num_ranks);
  RoundTracer tracer(std::move(backend), network.vocab_size);
  return RoundBench(tracer, meter, network, options, observer).run();
}

}  // namespace coppice
