// What one request left behind, bit for bit, and where two such trails part.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "backend/trace/forwarding_backend.h"
#include "tests/engine/support/tiny_engine.h"

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

// The bytes of a tensor on any device; rows may have gaps. Waits.
inline std::vector<std::byte> read_bytes(Backend& backend, const Tensor& tensor) {
  const std::size_t row_bytes =
      static_cast<std::size_t>(tensor.row_size()) * size_of(tensor.dtype());
  std::vector<std::byte> bytes(row_bytes * static_cast<std::size_t>(tensor.shape(0)));
  if (tensor.is_dense()) {
    if (!bytes.empty()) backend.download(bytes.data(), tensor);
    return bytes;
  }
  for (std::int64_t i = 0; i < tensor.shape(0); ++i)
    backend.download(bytes.data() + static_cast<std::size_t>(i) * row_bytes, tensor.rows(i, 1));
  return bytes;
}

template <typename T>
std::vector<T> read_values(Backend& backend, const Tensor& tensor) {
  std::vector<T> values(static_cast<std::size_t>(tensor.num_elements()));
  if (!values.empty()) backend.download(values.data(), tensor);
  return values;
}

// Runs rounds op by op, never from a captured graph.
class EagerBackend : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  void run_graph(const GraphKey&, const std::function<void()>& body) override { body(); }
};

struct Trail {
  std::vector<std::int32_t> tokens;
  std::map<std::int64_t, RowHash> rows;  // by position
  RequestStats stats;
  std::string breach;  // a row recomputed after a preemption that came out differently
};

// Fills trails by request while it observes an engine. Positions before `begin` are left out.
class TrailRecorder {
 public:
  explicit TrailRecorder(Engine& engine, std::int64_t begin = 0) : begin_(begin) {
    engine.set_commit_observer([this](const CommitTrace& trace) { record(trace); });
  }
  // Only these requests' rows; all without a call.
  void watch(RequestId id) { watched_.insert(id); }
  Trail& trail(RequestId id) { return trails_[id]; }

 private:
  void record(const CommitTrace& trace) {
    if (!watched_.empty() && !watched_.contains(trace.id)) return;
    Trail& trail = trails_[trace.id];
    const std::size_t count = trace.slots.size();
    std::vector<RowHash> rows(count, RowHash{.kv = 17, .logits = 0});
    const auto skipped = static_cast<std::size_t>(
        std::clamp<std::int64_t>(begin_ - trace.position, 0, static_cast<std::int64_t>(count)));
    for (const Tensor& plane : trace.cache->planes()) hash_plane(trace, plane, skipped, rows);
    for (std::size_t i = skipped; i < count; ++i) {
      RowHash& row = rows[i];
      if (trace.rows[i] >= 0) {
        const std::vector<std::byte> bytes =
            read_bytes(*trace.backend, trace.logits.rows(trace.rows[i], 1));
        row.logits = hash_bytes(bytes.data(), bytes.size());
      }
      const std::int64_t position = trace.position + static_cast<std::int64_t>(i);
      const auto [known, is_new] = trail.rows.emplace(position, row);
      if (is_new) continue;
      if (known->second.kv != row.kv)
        trail.breach = "position " + std::to_string(position) + " was recomputed differently";
      if (row.logits != 0) known->second.logits = row.logits;
    }
  }

  // Slots that follow each other are read at once.
  static void hash_plane(const CommitTrace& trace, const Tensor& plane, std::size_t begin,
                         std::vector<RowHash>& rows) {
    const Tensor slots = plane.reshape({plane.shape(0) * plane.shape(1), plane.shape(2)});
    const std::size_t row_bytes = static_cast<std::size_t>(plane.shape(2)) * size_of(plane.dtype());
    for (std::size_t i = begin, end; i < rows.size(); i = end) {
      for (end = i + 1; end < rows.size() && trace.slots[end] == trace.slots[end - 1] + 1;) ++end;
      const std::vector<std::byte> bytes = read_bytes(
          *trace.backend, slots.rows(trace.slots[i], static_cast<std::int64_t>(end - i)));
      for (std::size_t row = i; row < end; ++row)
        rows[row].kv = hash_bytes(bytes.data() + (row - i) * row_bytes, row_bytes, rows[row].kv);
    }
  }

  std::int64_t begin_;
  std::set<RequestId> watched_;
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

  // It reads back between ops.
  void run_graph(const GraphKey&, const std::function<void()>& body) override { body(); }

  void embed(const EmbedArgs& args) override {
    ForwardingBackend::embed(args);
    begin_pass();
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
  // Fused ops as their steps.
  void moe_block(const MoeBlockArgs& args) override { Backend::moe_block(args); }
  void mla_queries(const MlaQueriesArgs& args) override { Backend::mla_queries(args); }
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
    const auto counts = read_values<std::int32_t>(*this, args.num_emitted);
    const auto rows = read_values<std::int32_t>(*this, args.accepted_rows);
    const auto positions = read_values<std::int32_t>(*this, args.feature_positions);
    const auto seeds = read_values<std::int64_t>(*this, args.sampling.seed);
    const auto max_path = static_cast<std::size_t>(args.emitted.shape(1));
    for (std::size_t b = 0; b < counts.size(); ++b)
      for (std::size_t i = b * max_path; i < b * max_path + static_cast<std::size_t>(counts[b]);
           ++i) {
        const auto row = static_cast<std::size_t>(rows[i]);
        Ops& ops = decided_[{seeds[b], positions[i]}];
        ops.clear();
        for (const auto& [name, hashes] : verified_)
          if (row < hashes.size()) ops.emplace_back(name, hashes[row]);
      }
  }

 protected:
  void begin_pass() { pass_.clear(); }
  void note(const std::string& name, const Tensor& out) {
    const std::vector<std::byte> bytes = read_bytes(*this, out);
    const auto count = static_cast<std::size_t>(out.shape(0));
    std::vector<std::uint64_t> hashes;
    for (std::size_t t = 0; t < count; ++t)
      hashes.push_back(hash_bytes(bytes.data() + t * (bytes.size() / count), bytes.size() / count));
    pass_.emplace_back(name, std::move(hashes));
  }

 private:
  std::vector<std::pair<std::string, std::vector<std::uint64_t>>> pass_, verified_;
  std::map<std::pair<std::int64_t, std::int64_t>, Ops> decided_;  // by (seed, position)
};

}  // namespace coppice::testing
