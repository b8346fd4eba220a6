// What a decode round launches: one graph and nothing beside it; three with masks, because the host
// fills them while the second runs.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backend/trace/forwarding_backend.h"
#include "engine/decode_round.h"
#include "tests/engine/support/tiny_engine.h"

namespace coppice {
namespace {

using namespace testing;

// Counts the graphs that are run, the rounds in them, and which ops run outside of any.
class LaunchCounter final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  struct Launches {
    std::vector<GraphKey> graphs;
    std::int64_t rounds = 0;       // each compiles its trees once
    std::set<std::string> beside;  // ops outside of graphs
  };
  Launches take() { return std::exchange(launches_, {}); }

  void run_graph(const GraphKey& key, const std::function<void()>& body) override {
    launches_.graphs.push_back(key);
    inside_ = true;
    inner_->run_graph(key, body);
    inside_ = false;
  }
  void compile_tree(const CompileTreeArgs& args) override {
    ++launches_.rounds;
    note("compile_tree");
    inner_->compile_tree(args);
  }
  void embed(const EmbedArgs& args) override {
    note("embed");
    inner_->embed(args);
  }
  void linear(const LinearArgs& args) override {
    note("linear");
    inner_->linear(args);
  }
  void add_rms_norm(const AddRmsNormArgs& args) override {
    note("add_rms_norm");
    inner_->add_rms_norm(args);
  }
  void moe_block(const MoeBlockArgs& args) override {
    note("moe_block");
    inner_->moe_block(args);
  }
  void mla_attention(const MlaAttentionArgs& args) override {
    note("mla_attention");
    inner_->mla_attention(args);
  }
  void gqa_attention(const GqaAttentionArgs& args) override {
    note("gqa_attention");
    inner_->gqa_attention(args);
  }
  void gather_rows(const GatherRowsArgs& args) override {
    note("gather_rows");
    inner_->gather_rows(args);
  }
  void compile_draft(const CompileDraftArgs& args) override {
    note("compile_draft");
    inner_->compile_draft(args);
  }
  void top_k_log_probs(const TopKLogProbsArgs& args) override {
    note("top_k_log_probs");
    inner_->top_k_log_probs(args);
  }
  void build_tree(const BuildTreeArgs& args) override {
    note("build_tree");
    inner_->build_tree(args);
  }
  void ngram_propose(const NgramProposeArgs& args) override {
    note("ngram_propose");
    inner_->ngram_propose(args);
  }
  void sample_rows(const SampleRowsArgs& args) override {
    note("sample_rows");
    inner_->sample_rows(args);
  }
  void accept_path(const AcceptPathArgs& args) override {
    note("accept_path");
    inner_->accept_path(args);
  }
  void move_kv(const MoveKvArgs& args) override {
    note("move_kv");
    inner_->move_kv(args);
  }

 private:
  void note(const char* op) {
    if (!inside_) launches_.beside.insert(op);
  }

  Launches launches_;
  bool inside_ = false;
};

constexpr std::int64_t kTokens = 60;

struct Case {
  SpeculativeConfig speculative = plain();
  bool has_drafter = true;
  bool eager = false;
  std::int64_t rounds_ahead = 0;
};

Request free_request() {
  Request request = greedy(golden_prompt(kGoldenPrompts[2]), kTokens);
  request.sampling.ignore_eos = true;
  return request;
}

Request sampled_request() {
  Request request = free_request();
  request.sampling.temperature = 0.8;
  request.sampling.seed = 3;
  request.sampling.logprobs = 5;
  return request;
}

Request masked_request() {
  Request request = free_request();
  for (std::int32_t id = 0; id < 3000; ++id) request.sampling.allowed_token_ids.push_back(id);
  return request;
}

// What the rounds launched, from the first one behind the prompts to the last.
LaunchCounter::Launches launches_of(const Case& c, const std::vector<Request>& requests) {
  LaunchCounter* counter = nullptr;
  EngineParts parts = tiny_parts({.device = "cpu",
                                  .wrap_backend =
                                      [&](std::unique_ptr<Backend> inner) {
                                        auto wrapped =
                                            std::make_unique<LaunchCounter>(std::move(inner));
                                        counter = wrapped.get();
                                        return wrapped;
                                      }},
                                 0, nullptr);
  if (!c.has_drafter) parts.drafter_model.reset();
  EngineConfig config;
  config.speculative = c.speculative;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 512;
  config.max_model_len = 1024;
  config.max_rounds_ahead = c.rounds_ahead;
  config.enforce_eager = c.eager;
  Engine engine(config, std::move(parts));
  counter->take();
  std::vector<Finished> finished(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) add(engine, requests[i], finished[i]);
  EXPECT_TRUE(engine.step());  // all prompts in one step
  EXPECT_EQ(engine.metrics().num_prefill_steps, 1);
  EXPECT_TRUE(counter->take().graphs.empty());
  while (engine.step()) {
  }
  for (const Finished& request : finished) EXPECT_EQ(std::ssize(request.tokens), kTokens);
  LaunchCounter::Launches launches = counter->take();
  EXPECT_GT(launches.rounds, 5);
  // Rounds ahead may be launched for requests that have ended by then.
  EXPECT_GE(launches.rounds, engine.metrics().num_rounds);
  EXPECT_LE(launches.rounds, engine.metrics().num_rounds + c.rounds_ahead);
  return launches;
}

std::set<std::int32_t> kinds_of(const LaunchCounter::Launches& launches) {
  std::set<std::int32_t> kinds;
  for (const GraphKey& key : launches.graphs) kinds.insert(key.kind);
  return kinds;
}

constexpr auto kRound = static_cast<std::int32_t>(GraphKind::kRound);

// Features of a round that does not draft wait for the drafter: they are copied behind the round's
// graph, and projected when it is wanted again or nobody is left.
std::set<std::string> unexpected_beside(const LaunchCounter::Launches& launches, const Case& c) {
  std::set<std::string> ops = launches.beside;
  if (c.has_drafter) {
    ops.erase("gather_rows");
    ops.erase("linear");
  }
  return ops;
}

void expect_one_graph_a_round(const LaunchCounter::Launches& launches, const Case& c) {
  EXPECT_EQ(std::ssize(launches.graphs), launches.rounds);
  EXPECT_EQ(kinds_of(launches), (std::set{kRound}));
  EXPECT_EQ(unexpected_beside(launches, c), std::set<std::string>());
}

TEST(GraphLaunchesTest, ARoundIsOneGraphAndNothingBesideIt) {
  const std::vector<std::vector<Request>> batches = {
      {free_request()}, {sampled_request()}, {free_request(), sampled_request(), free_request()}};
  for (const std::int64_t ahead : {0, 2})
    for (const std::vector<Request>& batch : batches) {
      SCOPED_TRACE(std::to_string(batch.size()) + " requests, " + std::to_string(ahead) + " ahead");
      for (const Case& c :
           {Case{.speculative = plain(), .has_drafter = false, .rounds_ahead = ahead},
            Case{.speculative = ngram(), .has_drafter = false, .rounds_ahead = ahead},
            Case{.speculative = chain(), .rounds_ahead = ahead},
            Case{.speculative = tree(8), .rounds_ahead = ahead}}) {
        SCOPED_TRACE(name_of(c.speculative.method));
        expect_one_graph_a_round(launches_of(c, batch), c);
      }
    }
}

TEST(GraphLaunchesTest, SoIsARoundWhoseBudgetIsChosen) {
  const Case c{.speculative = tree(kAutoBudget)};
  expect_one_graph_a_round(launches_of(c, {sampled_request()}), c);
}

// All rounds of a request that decodes plainly are one captured graph.
TEST(GraphLaunchesTest, PlainRoundsReplayTheSameGraph) {
  for (const Request& request : {free_request(), sampled_request()}) {
    const LaunchCounter::Launches launches = launches_of({.has_drafter = false}, {request});
    EXPECT_EQ(launches.rounds, kTokens - 1);  // the first is the prompt's
    for (const GraphKey& key : launches.graphs) EXPECT_EQ(key, launches.graphs.front());
  }
}

TEST(GraphLaunchesTest, AMaskedRoundIsThreeGraphs) {
  for (const Case& c :
       {Case{.speculative = plain(), .has_drafter = false}, Case{.speculative = tree(8)}})
    for (const std::vector<Request>& batch :
         {std::vector<Request>{masked_request()}, {free_request(), masked_request()}}) {
      SCOPED_TRACE(std::string(name_of(c.speculative.method)) + ", " +
                   std::to_string(batch.size()) + " requests");
      const LaunchCounter::Launches launches = launches_of(c, batch);
      EXPECT_EQ(unexpected_beside(launches, c), std::set<std::string>());
      ASSERT_GE(std::ssize(launches.graphs), 3);
      std::int64_t masked = 0, others = 0;
      for (auto graph = launches.graphs.begin(); graph != launches.graphs.end();) {
        if (graph->kind == kRound) {  // the masked request has ended
          ++others;
          ++graph;
          continue;
        }
        ASSERT_GE(launches.graphs.end() - graph, 3);
        for (const GraphKind kind : {GraphKind::kPropose, GraphKind::kForward, GraphKind::kJudge})
          EXPECT_EQ((graph++)->kind, static_cast<std::int32_t>(kind));
        ++masked;
      }
      EXPECT_EQ(masked + others, launches.rounds);
      EXPECT_GT(masked, 5);
      if (batch.size() == 1) {
        EXPECT_EQ(others, 0);
      }
    }
}

// The planted fault: rounds that run op by op have no graph, and their ops are seen beside.
TEST(GraphLaunchesTest, EagerRoundsAreSeen) {
  const LaunchCounter::Launches launches =
      launches_of({.speculative = tree(8), .eager = true}, {sampled_request()});
  EXPECT_TRUE(launches.graphs.empty());
  for (const char* op : {"compile_draft", "embed", "linear", "add_rms_norm", "moe_block",
                         "mla_attention", "gqa_attention", "top_k_log_probs", "build_tree",
                         "compile_tree", "sample_rows", "accept_path", "move_kv", "gather_rows"})
    EXPECT_TRUE(launches.beside.contains(op)) << op;
}

}  // namespace
}  // namespace coppice
