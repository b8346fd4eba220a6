// The drafter's cache after several rounds: every decided position holds, bit for bit, the keys and
// values that the features of its token alone give. So rows accepted anywhere in a tree went to
// their own positions, with their own rotation.
#include <gtest/gtest.h>

#include "backend/trace/forwarding_backend.h"
#include "tests/engine/support/tiny_engine.h"
#include "tests/support/draft_driver.h"

namespace coppice {
namespace {

using namespace testing;

constexpr std::int64_t kNumFeatures = 4;
constexpr std::int64_t kTokens = 40;

// Knows the drafter's planes: the target's cache is latent, so all other keys are the drafter's.
class ContextSpy : public ForwardingBackend {
 public:
  ContextSpy(std::unique_ptr<Backend> inner, bool faulty)
      : ForwardingBackend(std::move(inner)), faulty_(faulty) {}

  struct Planes {
    Tensor k, v;
  };
  const std::vector<Planes>& layers() const { return layers_; }

  void gqa_rope_and_write_kv(const GqaRopeAndWriteKvArgs& args) override {
    const auto known = [&](const Planes& planes) {
      return planes.k.data<float>() == args.k_cache.data<float>();
    };
    if (std::none_of(layers_.begin(), layers_.end(), known))
      layers_.push_back({args.k_cache, args.v_cache});
    // The fault: accepted rows are rotated one position late. Context has no queries.
    const bool shift = faulty_ && args.q.empty() && args.positions.shape(0) < 17;
    shift_positions(args.positions, shift ? 1 : 0);
    ForwardingBackend::gqa_rope_and_write_kv(args);
    shift_positions(args.positions, shift ? -1 : 0);
  }

 private:
  static void shift_positions(const Tensor& positions, std::int32_t by) {
    for (std::int64_t t = 0; t < positions.shape(0); ++t) positions.data<std::int32_t>()[t] += by;
  }
  std::vector<Planes> layers_;
  bool faulty_;
};

struct Outcome {
  std::int64_t rounds = 0;
  std::int64_t scattered = 0;    // rounds whose accepted rows were not the first ones of the tree
  std::int64_t compared = 0;     // rows of keys and values
  std::int64_t differences = 0;  // of them
};

// What the drafter's cache holds of the first `count` tokens when they are decided one by one.
std::vector<std::vector<float>> decided_one_by_one(const std::vector<std::int32_t>& tokens,
                                                   std::size_t prompt_len, std::int64_t count) {
  const auto backend = make_backend({.device = "cpu", .num_threads = 1});
  const ModelOptions options{.max_rows = 512, .max_positions = 2048};
  const auto model = load_model(*backend, kTinyK2, options);
  const auto drafter = load_dflash_model(*backend, kTinyK2Dflash, *model, options);
  ModelDriver target(*backend, *model, 512, kNumFeatures);
  DraftDriver draft(*backend, *drafter, target);
  const std::span<const std::int32_t> all(tokens);
  const auto length = static_cast<std::int64_t>(prompt_len);
  draft.append(target.prefill(all.first(prompt_len), prompt_len).features, 0, length,
               Provenance::kPrompt);
  for (std::int64_t position = length; position < count; ++position)
    draft.append(
        target.append(all.subspan(static_cast<std::size_t>(position), 1), Provenance::kDecided)
            .features,
        position, 1, Provenance::kDecided);
  std::vector<std::vector<float>> rows;
  for (std::int64_t position = 0; position < count; ++position)
    for (std::int64_t layer = 0; layer < drafter->config().network.num_hidden_layers; ++layer)
      for (const std::int64_t plane : {0, 1}) rows.push_back(draft.cached(layer, plane, position));
  return rows;
}

Outcome generate(const std::string& prompt, bool faulty) {
  ContextSpy* spy = nullptr;
  auto engine = make_tiny_engine({.speculative = tree(16), .wrap_backend = [&](auto inner) {
                                    auto made =
                                        std::make_unique<ContextSpy>(std::move(inner), faulty);
                                    spy = made.get();
                                    return made;
                                  }});
  Outcome outcome;
  std::int64_t last_anchor = 0;
  std::map<std::int64_t, std::int32_t> slot_of;
  engine->set_round_observer([&](const RoundTrace& trace) {
    ++outcome.rounds;
    last_anchor = trace.position;
    for (std::size_t i = 0; i < trace.accepted.size(); ++i)
      if (trace.accepted[i] != static_cast<std::int32_t>(i)) {
        ++outcome.scattered;
        break;
      }
  });
  engine->set_commit_observer([&](const CommitTrace& trace) {
    for (std::size_t i = 0; i < trace.slots.size(); ++i)
      slot_of[trace.position + static_cast<std::int64_t>(i)] = trace.slots[i];
  });
  std::vector<std::int32_t> tokens = golden_prompt(prompt);
  const std::size_t prompt_len = tokens.size();
  Request request = greedy(tokens, kTokens);
  request.sampling.ignore_eos = true;
  const Finished result = run(*engine, request);
  tokens.insert(tokens.end(), result.tokens.begin(), result.tokens.end());

  // The rows that the last round accepted are not projected any more.
  const auto expected = decided_one_by_one(tokens, prompt_len, last_anchor);
  std::size_t next = 0;
  for (std::int64_t position = 0; position < last_anchor; ++position)
    for (const ContextSpy::Planes& layer : spy->layers())
      for (const Tensor& plane : {layer.k, layer.v}) {
        const std::vector<float>& row = expected[next++];
        const float* held = plane.data<float>() + std::int64_t{slot_of.at(position)} *
                                                      static_cast<std::int64_t>(row.size());
        ++outcome.compared;
        outcome.differences += std::equal(row.begin(), row.end(), held) ? 0 : 1;
      }
  EXPECT_EQ(next, expected.size());
  return outcome;
}

TEST(DrafterContextTest, AcceptedRowsLieAtTheirPositions) {
  std::int64_t scattered = 0;
  for (const char* prompt : {"code_short", "prose_mid", "code_long"}) {
    SCOPED_TRACE(prompt);
    const Outcome outcome = generate(prompt, false);
    EXPECT_GT(outcome.rounds, 3);
    EXPECT_GT(outcome.compared, 0);
    EXPECT_EQ(outcome.differences, 0) << "of " << outcome.compared;
    scattered += outcome.scattered;
  }
  EXPECT_GT(scattered, 3);
}

TEST(DrafterContextTest, ARotationOnePositionLateIsFound) {
  EXPECT_GT(generate("prose_mid", true).differences, 10);
}

}  // namespace
}  // namespace coppice
