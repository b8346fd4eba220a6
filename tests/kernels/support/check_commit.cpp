// accept_path and move_kv against the host.
#include <cstring>
#include <random>

#include "kernels/kv/move_kv.h"
#include "kernels/tree/accept_path.h"
#include "tests/kernels/support/device_array.h"
#include "tests/kernels/support/tree_checks.h"
#include "tests/kernels/support/tree_reference.h"

namespace coppice::kernels::checks {
namespace {

int check_accept(int num_seqs, int max_nodes, std::mt19937& rng) {
  const int max_path = 16, max_blocks = 8, max_stop = 4, stride = 600;
  std::vector<int32_t> tokens, parents, depths, counts, offsets{0}, choices, finite, slots, tables;
  std::vector<int32_t> prompt_len, max_tokens, stop_ids, history, history_len, context;
  std::vector<int32_t> anchors;
  std::vector<Tree> trees;
  std::vector<int> kept;
  for (int s = 0; s < num_seqs; ++s) {
    Tree tree;
    tree.count = rng() % 8 == 0 ? -1 : static_cast<int>(rng() % (max_nodes + 1));
    tree.tokens = {5};
    tree.parents = {-1};
    tree.depths = {0};
    for (int i = 1; i <= max_nodes; ++i) {
      int parent = static_cast<int>(rng() % i);
      while (tree.depths[parent] >= max_path - 1) parent = tree.parents[parent];
      int token = static_cast<int>(rng() % 5);  // unique under a parent
      for (int j = 1; j < i; ++j) {
        if (tree.parents[j] == parent && tree.tokens[j] == token) token = 100 + i, j = 0;
      }
      tree.tokens.push_back(token);
      tree.parents.push_back(parent);
      tree.depths.push_back(tree.depths[parent] + 1);
    }
    kept.push_back(tree.count < 0 ? -1 : static_cast<int>(rng() % (tree.count + 1)));
    for (int i = 0; i <= kept[s]; ++i) {
      int32_t choice = static_cast<int>(rng() % 6);
      if (rng() % 4 != 0) {  // usually follow some child
        for (int j = 1; j <= kept[s]; ++j) {
          if (tree.parents[j] == i && rng() % 2 == 0) choice = tree.tokens[j];
        }
      }
      choices.push_back(choice);
      finite.push_back(rng() % 40 != 0);
      slots.push_back(0);
    }
    offsets.push_back(static_cast<int32_t>(choices.size()));
    counts.push_back(tree.count);
    tokens.insert(tokens.end(), tree.tokens.begin(), tree.tokens.end());
    parents.insert(parents.end(), tree.parents.begin(), tree.parents.end());
    depths.insert(depths.end(), tree.depths.begin(), tree.depths.end());
    trees.push_back(tree);
    for (int i = 0; i < max_blocks; ++i) tables.push_back(static_cast<int32_t>(s * max_blocks + i));
    context.push_back(static_cast<int32_t>(rng() % (64 * max_blocks - max_nodes - 17)));
    for (int i = 0; i <= kept[s]; ++i) {
      const int position = context[s] + i;
      slots[offsets[s] + i] = tables[s * max_blocks + position / 64] * 64 + position % 64;
    }
    prompt_len.push_back(100);
    history_len.push_back(100 + static_cast<int32_t>(rng() % 50));
    max_tokens.push_back(static_cast<int32_t>(20 + rng() % 60));
    for (int i = 0; i < max_stop; ++i) {
      stop_ids.push_back(i < 2 ? static_cast<int32_t>(rng() % 12) : -1);
    }
    anchors.push_back(7);
  }
  history.assign(static_cast<size_t>(num_seqs) * stride, -7);
  DeviceArray<int32_t> d_tokens(tokens), d_parents(parents), d_depths(depths), d_counts(counts);
  DeviceArray<float> d_scores(tokens.size());
  DeviceArray<int32_t> d_offsets(offsets), d_choices(choices), d_finite(finite), d_slots(slots);
  DeviceArray<int32_t> d_tables(tables), d_prompt(prompt_len), d_max(max_tokens);
  DeviceArray<int32_t> d_stop(stop_ids), d_history(history), d_history_len(history_len);
  DeviceArray<int32_t> d_context(context), d_anchors(anchors);
  const size_t places = static_cast<size_t>(num_seqs) * max_path;
  DeviceArray<int32_t> rows(places), emitted(places), num_emitted(num_seqs), reason(num_seqs);
  DeviceArray<int32_t> src(places), dst(places), feature_rows(places), feature_positions(places);
  DeviceArray<int32_t> feature_slots(places);
  AcceptPathParams p;
  p.trees = {d_tokens.get(), d_parents.get(), d_depths.get(),
             d_scores.get(), d_counts.get(),  max_nodes};
  p.row_offsets = d_offsets.get();
  p.choices = d_choices.get();
  p.finite = d_finite.get();
  p.slots = d_slots.get();
  p.block_tables = d_tables.get();
  p.prompt_len = d_prompt.get();
  p.max_tokens = d_max.get();
  p.stop_ids = d_stop.get();
  p.history = d_history.get();
  p.history_len = d_history_len.get();
  p.context_len = d_context.get();
  p.anchors = d_anchors.get();
  p.accepted_rows = rows.get();
  p.emitted = emitted.get();
  p.num_emitted = num_emitted.get();
  p.finish_reason = reason.get();
  p.move_src = src.get();
  p.move_dst = dst.get();
  p.feature_rows = feature_rows.get();
  p.feature_positions = feature_positions.get();
  p.feature_slots = feature_slots.get();
  p.num_seqs = num_seqs;
  p.max_path = max_path;
  p.max_blocks = max_blocks;
  p.max_stop_ids = max_stop;
  p.history_stride = stride;
  CHECK_CUDA(accept_path(p, nullptr));
  const auto h_rows = rows.host(), h_emitted = emitted.host(), h_num = num_emitted.host();
  const auto h_reason = reason.host(), h_src = src.host(), h_dst = dst.host();
  const auto h_frows = feature_rows.host(), h_fpos = feature_positions.host();
  const auto h_fslots = feature_slots.host(), h_context = d_context.host();
  const auto h_anchor = d_anchors.host(), h_hlen = d_history_len.host(), h_hist = d_history.host();
  int failures = 0, reasons[4] = {};
  for (int s = 0; s < num_seqs; ++s) {
    Accepted want;
    if (kept[s] >= 0) {
      const std::vector<int32_t> c(choices.begin() + offsets[s], choices.begin() + offsets[s + 1]);
      const std::vector<int32_t> f(finite.begin() + offsets[s], finite.begin() + offsets[s + 1]);
      const std::vector<int32_t> stops(stop_ids.begin() + s * max_stop,
                                       stop_ids.begin() + s * max_stop + 2);
      want = reference_accept(trees[s], kept[s], c, f, stops, history_len[s] - 100, max_tokens[s]);
    }
    ++reasons[want.reason];
    const int e = static_cast<int>(want.emitted.size());
    bool same = h_num[s] == e && h_reason[s] == want.reason && h_context[s] == context[s] + e &&
                h_hlen[s] == history_len[s] + e &&
                h_anchor[s] == (want.reason != 0 ? -1 : (e > 0 ? want.emitted.back() : 7));
    for (int i = 0; i < max_path; ++i) {
      const size_t at = static_cast<size_t>(s) * max_path + i;
      if (i >= e) {
        same = same && h_rows[at] == -1 && h_emitted[at] == -1 && h_src[at] == -1 &&
               h_dst[at] == -1 && h_frows[at] == -1 && h_fslots[at] == -1 && h_fpos[at] == 0;
        continue;
      }
      const int row = offsets[s] + want.path[i];
      const int position = context[s] + i;
      const int slot = tables[s * max_blocks + position / 64] * 64 + position % 64;
      const bool moves = want.path[i] != i;
      same = same && h_rows[at] == row && h_frows[at] == row && h_emitted[at] == want.emitted[i] &&
             h_fpos[at] == position && h_fslots[at] == slot &&
             h_src[at] == (moves ? slots[row] : -1) && h_dst[at] == (moves ? slot : -1) &&
             h_hist[static_cast<size_t>(s) * stride + history_len[s] + i] == want.emitted[i];
    }
    failures += !same;
  }
  std::printf("accept B=%d N=%d: %d failures (finish none %d, stop %d, length %d, not finite %d)\n",
              num_seqs, max_nodes, failures, reasons[0], reasons[1], reasons[2], reasons[3]);
  return failures;
}

int check_move(int row_bytes, int num_planes, int num_pairs, std::mt19937& rng) {
  const int num_slots = 4 * num_pairs + 64;
  const size_t plane_bytes = static_cast<size_t>(num_slots) * row_bytes;
  std::vector<char> cache(plane_bytes * num_planes);
  for (char& c : cache) c = static_cast<char>(rng());
  std::vector<int32_t> slots(num_slots), src, dst;
  std::iota(slots.begin(), slots.end(), 0);
  std::shuffle(slots.begin(), slots.end(), rng);
  for (int i = 0; i < num_pairs; ++i) {  // sources overlap destinations of other pairs
    const bool skip = rng() % 4 == 0;
    src.push_back(skip ? -1 : slots[rng() % (2 * num_pairs)]);
    dst.push_back(skip ? -1 : slots[i]);
  }
  DeviceArray<char> d_cache(cache);
  DeviceArray<int32_t> d_src(src), d_dst(dst);
  MoveKvParams p;
  for (int i = 0; i < num_planes; ++i) p.planes[i] = d_cache.get() + i * plane_bytes;
  p.num_planes = num_planes;
  p.row_bytes = row_bytes;
  p.src = d_src.get();
  p.dst = d_dst.get();
  p.num_pairs = num_pairs;
  CHECK_CUDA(move_kv(p, nullptr));
  std::vector<char> want(cache);
  for (int plane = 0; plane < num_planes; ++plane) {
    for (int i = 0; i < num_pairs; ++i) {
      if (src[i] < 0) continue;
      std::memcpy(&want[plane * plane_bytes + static_cast<size_t>(dst[i]) * row_bytes],
                  &cache[plane * plane_bytes + static_cast<size_t>(src[i]) * row_bytes], row_bytes);
    }
  }
  const int failures = d_cache.host() != want;
  std::printf("move_kv %d planes x %d B, %d pairs: %d failures\n", num_planes, row_bytes, num_pairs,
              failures);
  return failures;
}

}  // namespace

int check_commit(bool quick) {
  std::mt19937 rng(3);
  int failures = 0;
  for (int nodes : {0, 1, 16, 64, 128}) {
    failures += check_accept(1, nodes, rng);
    failures += check_accept(quick ? 9 : 300, nodes, rng);
  }
  failures += check_move(1152, 3, 16, rng);
  failures += check_move(16, 1, 1, rng);
  if (!quick) {
    failures += check_move(1152, 61, 1024, rng);
    failures += check_move(1152, 5, 4096, rng);
    failures += check_move(2048, 128, 128, rng);
  }
  return failures + check_move(320, quick ? 2 : 6, 33, rng);
}

}  // namespace coppice::kernels::checks
