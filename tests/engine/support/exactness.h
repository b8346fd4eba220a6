// What one request left behind, bit for bit, and where two such trails part.
#pragma once

#include <cstring>
#include <map>
#include <sstream>

#include "tests/engine/support/tiny_engine.h"
#include "tests/support/forwarding_backend.h"

namespace coppice::testing {

inline std::uint64_t hash_bytes(const void* data, std::size_t count, std::uint64_t hash = 17) {
  const auto* bytes = static_cast<const std::uint8_t*>(data);
  for (; count >= 8; count -= 8, bytes += 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes, 8);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  for (; count > 0; --count, ++bytes) hash = (hash ^ *bytes) * 0x100000001b3u;
  return hash;
}

// Of a decided token: its keys in all layers, and its logits where they were computed.
struct RowHash {
  std::uint64_t kv = 0;
  std::uint64_t logits = 0;  // 0: not computed
};

struct Trail {
  std::vector<std::int32_t> tokens;
  std::map<std::int64_t, RowHash> rows;  // by position
  RequestStats stats;
  std::string breach;  // a row recomputed after a preemption that came out differently
};

// Fills trails by request while it observes an engine on host memory.
class TrailRecorder {
 public:
  explicit TrailRecorder(Engine& engine) {
    engine.set_commit_observer([this](const CommitTrace& trace) { record(trace); });
  }
  Trail& trail(RequestId id) { return trails_[id]; }

 private:
  void record(const CommitTrace& trace) {
    Trail& trail = trails_[trace.id];
    for (std::size_t i = 0; i < trace.slots.size(); ++i) {
      RowHash row{.kv = 17, .logits = 0};
      for (const Tensor& plane : trace.cache->planes()) {
        const std::int64_t n = plane.shape(2);
        row.kv = hash_bytes(plane.data<float>() + trace.slots[i] * n,
                            static_cast<std::size_t>(n) * sizeof(float), row.kv);
      }
      if (trace.rows[i] >= 0)
        row.logits = hash_bytes(trace.logits.row<float>(trace.rows[i]),
                                static_cast<std::size_t>(trace.logits.row_size()) * sizeof(float));
      const std::int64_t position = trace.position + static_cast<std::int64_t>(i);
      const auto [known, is_new] = trail.rows.emplace(position, row);
      if (is_new) continue;
      if (known->second.kv != row.kv)
        trail.breach = "position " + std::to_string(position) + " was recomputed differently";
      if (row.logits != 0) known->second.logits = row.logits;
    }
  }

  std::map<RequestId, Trail> trails_;
};

// Where `b` first parts from `a`; empty when it does not. Rows whose logits only one side computed
// compare by their keys; rows that `b` took from the prefix cache were compared when they were
// made.
struct Difference {
  std::string what;
  std::int64_t position = -1;
  explicit operator bool() const { return !what.empty(); }
};

inline Difference compare(const Trail& a, const Trail& b) {
  if (!b.breach.empty()) return {b.breach, -1};
  std::size_t cached = 0;
  for (const auto& [position, row] : a.rows) {
    const auto other = b.rows.find(position);
    if (other == b.rows.end() && position < b.stats.num_cached_tokens) {
      ++cached;
      continue;
    }
    if (other == b.rows.end())
      return {"position " + std::to_string(position) + " is missing", position};
    if (row.kv != other->second.kv)
      return {"keys differ at position " + std::to_string(position), position};
    if (row.logits != 0 && other->second.logits != 0 && row.logits != other->second.logits)
      return {"logits differ at position " + std::to_string(position), position};
  }
  if (a.rows.size() != b.rows.size() + cached) return {"more rows than expected", -1};
  if (a.tokens != b.tokens) return {"tokens differ though logits agree", -1};
  return {};
}

// Hashes every op's output rows of the target's decode passes, to name the first op that differs.
class OpRecorder : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  using Ops = std::vector<std::pair<std::string, std::uint64_t>>;
  // Ops of the row that became the token at `position` of the request with this seed.
  static std::string first_difference(const Ops& a, const Ops& b) {
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
      if (a[i] != b[i]) return "op " + std::to_string(i) + " (" + b[i].first + ")";
    return a.size() == b.size() ? "" : "a different number of ops";
  }
  const Ops& ops(std::int64_t seed, std::int64_t position) { return decided_[{seed, position}]; }

  void embed(const EmbedArgs& args) override {
    ForwardingBackend::embed(args);
    pass_.clear();
    note("embed", args.out);
  }
  void rms_norm(const RmsNormArgs& args) override {
    ForwardingBackend::rms_norm(args);
    note("rms_norm", args.out);
  }
  void add_rms_norm(const AddRmsNormArgs& args) override {
    ForwardingBackend::add_rms_norm(args);
    note("add_rms_norm", args.out);
  }
  void linear(const LinearArgs& args) override {
    ForwardingBackend::linear(args);
    note("linear", args.out);
  }
  void head_linear(const HeadLinearArgs& args) override {
    ForwardingBackend::head_linear(args);
    note("head_linear", args.out);
  }
  void silu_mul(const SiluMulArgs& args) override {
    ForwardingBackend::silu_mul(args);
    note("silu_mul", args.out);
  }
  void moe_route(const MoeRouteArgs& args) override {
    ForwardingBackend::moe_route(args);
    note("moe_route", args.topk_weights);
  }
  void moe_experts(const MoeExpertsArgs& args) override {
    ForwardingBackend::moe_experts(args);
    note("moe_experts", args.out);
  }
  void mla_attention(const MlaAttentionArgs& args) override {
    ForwardingBackend::mla_attention(args);
    note("mla_attention", args.out);
  }
  void sample_rows(const SampleRowsArgs& args) override {
    verified_ = pass_;
    ForwardingBackend::sample_rows(args);
  }
  void accept_path(const AcceptPathArgs& args) override {
    ForwardingBackend::accept_path(args);
    for (std::int64_t b = 0; b < args.num_emitted.shape(0); ++b)
      for (std::int64_t i = 0; i < args.num_emitted.data<std::int32_t>()[b]; ++i) {
        const auto row = static_cast<std::size_t>(args.accepted_rows.row<std::int32_t>(b)[i]);
        Ops& ops =
            decided_[{args.sampling.seed.data<std::int64_t>()[b],
                      args.feature_positions.data<std::int32_t>()[b * args.emitted.shape(1) + i]}];
        ops.clear();
        for (const auto& [name, hashes] : verified_)
          if (row < hashes.size()) ops.emplace_back(name, hashes[row]);
      }
  }

 protected:
  void note(const std::string& name, const Tensor& out) {
    std::vector<std::uint64_t> hashes;
    for (std::int64_t t = 0; t < out.shape(0); ++t)
      hashes.push_back(
          hash_bytes(out.row<float>(t), static_cast<std::size_t>(out.row_size()) * sizeof(float)));
    pass_.emplace_back(name, std::move(hashes));
  }

 private:
  std::vector<std::pair<std::string, std::vector<std::uint64_t>>> pass_, verified_;
  std::map<std::pair<std::int64_t, std::int64_t>, Ops> decided_;  // by (seed, position)
};

}  // namespace coppice::testing
