// The collectives over peer memory: bits against the host's sum, on every rank, thousands of times
// inside graphs, and their end when a rank does not come. Every rank has a GPU of its own; where
// there are too few, two ranks share one for what is launched outside graphs: more streams, or
// graphs, of one GPU may run one after the other, and ranks that wait for each other never end.
// One rank alone of two, four and eight: what the others would send lies there before it starts.
// COPPICE_PEER_TIMES=1 prints times.
#include "kernels/comm/peer_exchange.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/half.h"
#include "kernels/comm/peer_norm.h"
#include "tests/kernels/support/device_array.h"
#include "tests/support/small_tests.h"

namespace coppice::kernels {
namespace {

using checks::DeviceArray;

void check(cudaError_t error) {
  CHECK_CUDA(error);
}

// Where ranks share a GPU, streams of one connection would wait for each other, and a kernel that
// is loaded at its first launch may wait for a kernel that waits for it: a deadlock of ranks. What
// is set already stays.
int num_devices() {
  static const int failed =
      setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0) | setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  int count = failed;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

// A group of ranks with their memory; what run() is given is called on each rank's own thread.
// Memory is allocated, and freed, while no call is under way: that may wait for the whole device.
class PeerRanks {
 public:
  explicit PeerRanks(int size, std::int64_t deadline_ns = testing::small_tests() ? 60'000'000'000
                                                                                 : 3'000'000'000)
      : size_(size), ranks_(static_cast<std::size_t>(size)), together_(size) {
    if (spread()) link_devices();
    for (int r = 0; r < size; ++r) {
      use(r);
      Rank& rank = ranks_[static_cast<std::size_t>(r)];
      check(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));
      check(cudaMalloc(&rank.data, peer_data_bytes(size)));
      check(cudaMalloc(&rank.flags, kPeerFlags * 4));
      check(cudaMalloc(&rank.calls, kPeerCounts * 4));
      check(cudaMallocHost(reinterpret_cast<void**>(&rank.words), 8));
    }
    clear();
    for (int r = 0; r < size; ++r) {
      Rank& rank = ranks_[static_cast<std::size_t>(r)];
      rank.group = {.calls = rank.calls,
                    .meetings = rank.calls + kPeerBlocks,
                    .broken = rank.calls + 2 * kPeerBlocks,
                    .missing = rank.words,
                    .give_up = rank.words + 1,
                    .deadline_ns = deadline_ns,
                    .rank = r,
                    .num_ranks = size};
      for (int peer = 0; peer < size; ++peer) {
        rank.group.data[peer] =
            static_cast<std::byte*>(ranks_[static_cast<std::size_t>(peer)].data);
        rank.group.flags[peer] = ranks_[static_cast<std::size_t>(peer)].flags;
      }
    }
  }
  ~PeerRanks() {
    for (Rank& rank : ranks_) {
      cudaStreamDestroy(rank.stream);
      cudaFree(rank.data);
      cudaFree(rank.flags);
      cudaFree(rank.calls);
      cudaFreeHost(rank.words);
    }
  }

  struct Rank {
    cudaStream_t stream = nullptr;
    void* data = nullptr;
    std::uint32_t* flags = nullptr;
    std::uint32_t* calls = nullptr;
    std::int32_t* words = nullptr;  // missing, give_up
    PeerGroup group{};
  };

  // As at first: no call was made.
  void clear() {
    for (int r = 0; r < size_; ++r) {
      use(r);
      const Rank& rank = ranks_[static_cast<std::size_t>(r)];
      check(cudaMemset(rank.data, 0, peer_data_bytes(size_)));
      check(cudaMemset(rank.flags, 0, kPeerFlags * 4));
      check(cudaMemset(rank.calls, 0, kPeerCounts * 4));
      rank.words[0] = rank.words[1] = 0;
      check(cudaDeviceSynchronize());
    }
  }

  // Waits for all ranks.
  void meet() {
    check(cudaDeviceSynchronize());
    together_.arrive_and_wait();
  }
  int size() const { return size_; }
  bool spread() const { return num_devices() >= size_; }
  void use(int rank) const { check(cudaSetDevice(spread() ? rank : 0)); }
  Rank& rank(int r) { return ranks_[static_cast<std::size_t>(r)]; }

  void run(const std::function<void(int rank)>& body) {
    std::vector<std::thread> threads;
    for (int r = 0; r < size_; ++r)
      threads.emplace_back([&, r] {
        use(r);
        body(r);
      });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  void link_devices() const {
    for (int r = 0; r < size_; ++r)
      for (int peer = 0; peer < size_; ++peer) {
        use(r);
        if (peer != r && cudaDeviceEnablePeerAccess(peer, 0) != cudaSuccess) cudaGetLastError();
      }
  }

  int size_;
  std::vector<Rank> ranks_;
  std::barrier<> together_;
};

template <typename T>
std::vector<T> read(const DeviceArray<T>& array, std::size_t count, cudaStream_t stream) {
  std::vector<T> values(count);
  // A copy to pageable memory holds the driver's lock until it is done: where ranks share a GPU,
  // the others could not launch what this one's kernel waits for.
  check(cudaStreamSynchronize(stream));
  check(cudaMemcpyAsync(values.data(), array.get(), count * sizeof(T), cudaMemcpyDeviceToHost,
                        stream));
  check(cudaStreamSynchronize(stream));
  return values;
}

// Values whose sum depends on the order, from (rank, turn, i).
bf16 value(int rank, int turn, std::size_t i) {
  std::uint32_t h = static_cast<std::uint32_t>(i) * 2654435761u +
                    static_cast<std::uint32_t>(rank * 97 + turn * 31 + 1) * 40503u;
  h ^= h >> 15;
  h *= 2246822519u;
  h ^= h >> 13;
  return to_bf16((static_cast<float>(h >> 8) / 8388608.0f - 1) * static_cast<float>(1 << (h % 12)));
}

std::vector<bf16> part(int rank, int turn, std::size_t count) {
  std::vector<bf16> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = value(rank, turn, i);
  return values;
}

std::vector<bf16> sum_of_parts(int size, int turn, std::size_t count) {
  std::vector<bf16> sum(count);
  for (std::size_t i = 0; i < count; ++i) {
    float total = to_float(value(0, turn, i));
    for (int rank = 1; rank < size; ++rank) total += to_float(value(rank, turn, i));
    sum[i] = to_bf16(total);
  }
  return sum;
}

bool same(const std::vector<bf16>& a, const std::vector<bf16>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(bf16)) == 0;
}

class PeerExchangeTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (num_devices() == 0) GTEST_SKIP() << "no GPU";
    if (num_devices() < GetParam() && GetParam() > 2)
      GTEST_SKIP() << GetParam() << " ranks on " << num_devices() << " GPUs";
    std::printf("%d ranks on %s\n", GetParam(),
                num_devices() >= GetParam() ? "GPUs of their own" : "one GPU");
  }
};

TEST_P(PeerExchangeTest, SumsAreTheHostsBitsOnEveryRank) {
  const int size = GetParam();
  PeerRanks ranks(size);
  for (const std::size_t count :
       {std::size_t{8}, std::size_t{384}, std::size_t{7168}, std::size_t{7168} * 17,
        std::size_t{524288}, static_cast<std::size_t>(peer_sum_max_elements(size))}) {
    const std::vector<bf16> expected = sum_of_parts(size, 3, count);
    for (const auto sum : {peer_sum, peer_sum_tagged, peer_sum_one_shot, peer_sum_two_shot}) {
      if (sum == peer_sum_tagged && 2 * count > std::size_t{kTaggedBytes}) continue;
      if (sum == peer_sum_one_shot && 2 * count > std::size_t{kPeerSlotBytes}) continue;
      ranks.run([&](int r) {
        PeerRanks::Rank& rank = ranks.rank(r);
        const DeviceArray<bf16> source(part(r, 3, count)), x(part(r, 3, count));
        ranks.meet();
        for (int repeat = 0; repeat < 5; ++repeat) {
          check(cudaMemcpyAsync(x.get(), source.get(), count * sizeof(bf16),
                                cudaMemcpyDeviceToDevice, rank.stream));
          check(sum(rank.group, {.x = x.get(), .num_elements = static_cast<std::int64_t>(count)},
                    rank.stream));
          EXPECT_TRUE(same(read(x, count, rank.stream), expected)) << "rank " << r << ", " << count;
        }
        ranks.meet();
      });
    }
  }
}

std::vector<float> norm_weight(int hidden) {
  std::vector<float> scales;
  for (int i = 0; i < hidden; ++i) scales.push_back(0.5f + static_cast<float>(i % 7));
  return scales;
}

// delta onto residual, in place; a row is as wide as the weight.
RmsNormParams norm_params(int rows, const DeviceArray<float>& weight,
                          const DeviceArray<bf16>& delta, const DeviceArray<bf16>& residual,
                          const DeviceArray<bf16>& out) {
  const auto hidden = static_cast<int>(weight.size());
  return {.x = residual.get(),
          .delta = delta.get(),
          .residual = residual.get(),
          .weight = weight.get(),
          .out = out.get(),
          .x_row_stride = hidden,
          .delta_row_stride = hidden,
          .residual_row_stride = hidden,
          .out_row_stride = hidden,
          .num_rows = rows,
          .hidden_size = hidden,
          .eps = 1e-5f};
}

// One kernel against the sum and then the norm, for rows of 7168 and of tiny-k2's 384.
TEST_P(PeerExchangeTest, TheFusedNormHasTheBitsOfItsSteps) {
  const int size = GetParam();
  PeerRanks ranks(size);
  for (const auto& [rows, hidden] :
       {std::pair{1, 384}, {100, 384}, {1, 7168}, {2, 7168}, {5, 7168}, {2, 16384}}) {
    if (!peer_norm_fits(size, rows, hidden)) continue;
    const auto count = static_cast<std::size_t>(rows * hidden);
    ranks.run([&, rows = rows, hidden = hidden](int r) {
      PeerRanks::Rank& rank = ranks.rank(r);
      const DeviceArray<float> weight(norm_weight(hidden));
      const DeviceArray<bf16> delta(part(r, 5, count)), summed(part(r, 5, count));
      const DeviceArray<bf16> residual(part(9, 6, count)), other(part(9, 6, count));
      const DeviceArray<bf16> out(part(8, 6, count)), expected(part(7, 6, count));
      ranks.meet();
      check(peer_sum(rank.group,
                     {.x = summed.get(), .num_elements = static_cast<std::int64_t>(count)},
                     rank.stream));
      check(rms_norm(norm_params(rows, weight, summed, other, expected), rank.stream));
      check(peer_norm(rank.group, norm_params(rows, weight, delta, residual, out), rank.stream));
      EXPECT_TRUE(same(read(out, count, rank.stream), read(expected, count, rank.stream)))
          << "rank " << r << ", " << rows << " x " << hidden;
      EXPECT_TRUE(same(read(residual, count, rank.stream), read(other, count, rank.stream)));
      ranks.meet();
    });
  }
}

std::vector<float> columns_of(int rank, int rows, int columns) {
  std::vector<float> values;
  for (int row = 0; row < rows; ++row)
    for (int column = 0; column < columns; ++column)
      values.push_back(static_cast<float>(rank * 1000 + row) + static_cast<float>(column) / 32768);
  return values;
}

std::vector<float> gathered(int size, int rows, int columns) {
  std::vector<float> values;
  std::vector<std::vector<float>> parts;
  for (int rank = 0; rank < size; ++rank) parts.push_back(columns_of(rank, rows, columns));
  for (int row = 0; row < rows; ++row)
    for (const std::vector<float>& part : parts)
      values.insert(values.end(), part.begin() + row * columns, part.begin() + (row + 1) * columns);
  return values;
}

TEST_P(PeerExchangeTest, GathersColumnsInRankOrder) {
  const int size = GetParam();
  PeerRanks ranks(size);
  for (const auto& [rows, columns] : {std::pair{1, 4}, std::pair{7, 1344}, std::pair{12, 20480}}) {
    const std::vector<float> expected = gathered(size, rows, columns);
    ranks.run([&, rows = rows, columns = columns](int r) {
      PeerRanks::Rank& rank = ranks.rank(r);
      const DeviceArray<float> x(columns_of(r, rows, columns)), out(expected.size());
      ranks.meet();
      check(peer_gather(rank.group,
                        {.x = x.get(), .out = out.get(), .num_rows = rows, .columns = columns},
                        rank.stream));
      EXPECT_EQ(read(out, expected.size(), rank.stream), expected)
          << "rank " << r << ", " << rows << " x " << columns;
      ranks.meet();
    });
  }
}

// Ten calls of changing size and form a graph, other values at each of a thousand launches.
TEST_P(PeerExchangeTest, TenThousandCallsInGraphsKeepTheirBits) {
  constexpr int kCalls = 10, kKinds = 8;
  const int launches = testing::small_tests() ? 17 : 1000;
  const int size = GetParam();
  if (num_devices() < size) GTEST_SKIP() << size << " ranks on " << num_devices() << " GPUs";
  constexpr std::size_t kCount = 7168;
  const std::size_t counts[] = {kCount, 8, 2 * kCount, 384, 3 * kCount};
  PeerRanks ranks(size);
  std::vector<std::vector<bf16>> expected;
  for (int turn = 0; turn < kKinds; ++turn)
    expected.push_back(sum_of_parts(size, turn, 3 * kCount));
  ranks.run([&](int r) {
    PeerRanks::Rank& rank = ranks.rank(r);
    std::deque<DeviceArray<bf16>> sources, sums;
    for (int turn = 0; turn < kKinds; ++turn) sources.emplace_back(part(r, turn, 3 * kCount));
    const DeviceArray<bf16> source(part(r, 0, 3 * kCount));
    for (int call = 0; call < kCalls; ++call) sums.emplace_back(part(r, 0, 3 * kCount));
    ranks.meet();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    check(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal));
    for (int call = 0; call < kCalls; ++call) {
      const std::size_t count = counts[call % 5];
      bf16* const x = sums[static_cast<std::size_t>(call)].get();
      check(cudaMemcpyAsync(x, source.get(), count * sizeof(bf16), cudaMemcpyDeviceToDevice,
                            rank.stream));
      const auto sum = std::array{peer_sum_tagged, peer_sum_one_shot, peer_sum_tagged,
                                  peer_sum_two_shot}[static_cast<std::size_t>(call % 4)];
      check(
          sum(rank.group, {.x = x, .num_elements = static_cast<std::int64_t>(count)}, rank.stream));
    }
    check(cudaStreamEndCapture(rank.stream, &graph));
    check(cudaGraphInstantiate(&executable, graph, 0));
    check(cudaGraphUpload(executable, rank.stream));
    ranks.meet();
    int wrong = 0;
    for (int launch = 0; launch < launches; ++launch) {
      const auto turn = static_cast<std::size_t>(launch % kKinds);
      check(cudaMemcpyAsync(source.get(), sources[turn].get(), 3 * kCount * sizeof(bf16),
                            cudaMemcpyDeviceToDevice, rank.stream));
      check(cudaGraphLaunch(executable, rank.stream));
      // All sums of some launches, one of the others.
      for (int call = 0; call < kCalls; ++call) {
        if (launch % 16 != 0 && call != launch % kCalls) continue;
        const std::size_t count = counts[call % 5];
        const std::vector<bf16> sum =
            read(sums[static_cast<std::size_t>(call)], count, rank.stream);
        wrong += std::memcmp(sum.data(), expected[turn].data(), count * sizeof(bf16)) != 0;
      }
    }
    EXPECT_EQ(wrong, 0) << "rank " << r;
    EXPECT_EQ(rank.words[0], 0);
    ranks.meet();
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, PeerExchangeTest, ::testing::Values(1, 2, 4, 8));

// One rank of a group, which waits for nobody: before each of its calls the host writes what the
// others would send in it. Knows what must lie in the memory of all ranks after the call.
class RankAlone {
 public:
  RankAlone(PeerRanks& ranks, int rank)
      : size_(ranks.size()),
        rank_(rank),
        ranks_(ranks),
        memory_(slots() * 2 * kWatched + 4 * kPeerFlags) {
    ranks_.clear();
    ranks_.use(rank);
    expected_.assign(static_cast<std::size_t>(size_), std::vector<std::byte>(memory_));
    check(cudaMallocHost(reinterpret_cast<void**>(&found_), memory_ * expected_.size()));
    // Odd ranks come to the end of the count.
    call_ = rank % 2 == 0 ? 0 : ~std::uint32_t{1};
    std::vector<std::uint32_t> calls(kPeerBlocks, call_);
    check(cudaMemcpy(group().calls, calls.data(), 4 * calls.size(), cudaMemcpyHostToDevice));
  }
  RankAlone(const RankAlone&) = delete;
  RankAlone& operator=(const RankAlone&) = delete;
  ~RankAlone() { cudaFreeHost(found_); }

  const PeerGroup& group() { return ranks_.rank(rank_).group; }
  cudaStream_t stream() { return ranks_.rank(rank_).stream; }

  // All ranks show their vectors, 8 values of bf16 or 4 of float, to all others.
  template <typename T>
  void one_shot(const std::vector<std::vector<T>>& parts) {
    next_call();
    for_peers([&](int peer) {
      show(peer, rank_, values_of(parts, peer));
      show(rank_, peer, values_of(parts, rank_));
    });
    meet(parts[0].size() * sizeof(T) / 16);
  }

  // Each rank sums one part, and shows the sum.
  void two_shot(const std::vector<std::vector<bf16>>& parts, const std::vector<bf16>& sum) {
    const std::size_t count = sum.size(), vectors = count / 8;
    const std::size_t each = (vectors + parts.size() - 1) / parts.size() * 8;
    const auto part_of = [&](std::span<const bf16> values, int rank) {
      const std::size_t begin = std::min(static_cast<std::size_t>(rank) * each, count);
      return values.subspan(begin, std::min(each, count - begin));
    };
    next_call();
    for_peers([&](int peer) {
      show(peer, rank_, part_of(values_of(parts, peer), rank_));
      show(rank_, peer, part_of(values_of(parts, rank_), peer));
    });
    next_call();
    for_peers([&](int peer) {
      show(peer, rank_, part_of(sum, peer));
      show(rank_, peer, part_of(sum, rank_));
    });
    for (int meeting = 0; meeting < 2; ++meeting) meet(each / 8);
  }

  // As one_shot, each word with the number of the call.
  void tagged(const std::vector<std::vector<bf16>>& parts) {
    next_call();
    const auto words_of = [&](int rank) {
      const std::span<const bf16> values = values_of(parts, rank);
      std::vector<std::uint64_t> words(values.size() / 2);
      for (std::size_t i = 0; i < words.size(); ++i) {
        std::memcpy(&words[i], &values[2 * i], 4);
        words[i] |= static_cast<std::uint64_t>(call_) << 32;
      }
      return words;
    };
    for_peers([&](int peer) {
      show<std::uint64_t>(peer, rank_, words_of(peer), true);
      show<std::uint64_t>(rank_, peer, words_of(rank_), true);
    });
  }

  // After the call: every rank's memory, and the counts of this one.
  void expect_memory(const std::string& what) {
    for (int owner = 0; owner < size_; ++owner) {
      std::byte* const found = found_ + static_cast<std::size_t>(owner) * memory_;
      for (const bool tagged : {false, true})
        check(cudaMemcpy2DAsync(found + watched(0, tagged), kWatched, slot(owner, 0, tagged),
                                pitch(tagged), kWatched, slots(), cudaMemcpyDeviceToHost,
                                stream()));
      check(cudaMemcpyAsync(found + flag(0, 0), group().flags[owner], 4 * kPeerFlags,
                            cudaMemcpyDeviceToHost, stream()));
    }
    std::vector<std::uint32_t> counts(kPeerCounts), expected(kPeerBlocks, call_);
    check(cudaMemcpyAsync(counts.data(), group().calls, 4 * kPeerCounts, cudaMemcpyDeviceToHost,
                          stream()));
    check(cudaStreamSynchronize(stream()));
    for (int owner = 0; owner < size_; ++owner)
      EXPECT_EQ(std::memcmp(found_ + static_cast<std::size_t>(owner) * memory_,
                            expected_[static_cast<std::size_t>(owner)].data(), memory_),
                0)
          << what << ", memory of " << owner;
    expected.insert(expected.end(), meetings_.begin(), meetings_.end());
    expected.push_back(0);  // not broken
    EXPECT_EQ(counts, expected) << what;
    EXPECT_EQ(ranks_.rank(rank_).words[0], 0) << what;
  }

 private:
  static constexpr std::size_t kWatched = std::size_t{32} << 10;  // of each slot, from its begin

  void next_call() { call_ = call_ + 1 == 0 ? 2 : call_ + 1; }
  void for_peers(const std::function<void(int peer)>& body) const {
    for (int peer = 0; peer < size_; ++peer)
      if (peer != rank_) body(peer);
  }
  template <typename T>
  static std::span<const T> values_of(const std::vector<std::vector<T>>& parts, int rank) {
    return parts[static_cast<std::size_t>(rank)];
  }

  // A rank's slots of a kind, and where one from `from` lies in this call.
  std::size_t slots() const { return 2 * static_cast<std::size_t>(size_); }
  std::size_t index_of(int from) const {
    return (call_ & 1) * static_cast<std::size_t>(size_) + static_cast<std::size_t>(from);
  }
  static std::size_t pitch(bool tagged) { return tagged ? kTaggedSlotBytes : kPeerSlotBytes; }
  std::byte* slot(int owner, std::size_t index, bool tagged) {
    return group().data[owner] + (tagged ? slots() * kPeerSlotBytes : 0) + index * pitch(tagged);
  }
  // In what is known of a rank's memory: all slots' begins, then the flags.
  std::size_t watched(std::size_t index, bool tagged) const {
    return ((tagged ? slots() : 0) + index) * kWatched;
  }
  std::size_t flag(std::size_t block, int from) const {
    return watched(slots(), true) + 4 * (block * kMaxPeers + static_cast<std::size_t>(from));
  }

  // What `from` shows `to` in this call: it must lie there after it, and what goes to this rank
  // does from now on.
  template <typename T>
  void show(int from, int to, std::span<const T> values, bool tagged = false) {
    const auto bytes = std::as_bytes(values);
    std::copy_n(bytes.begin(), std::min(bytes.size(), kWatched),
                expected_[static_cast<std::size_t>(to)].data() + watched(index_of(from), tagged));
    if (to == rank_)
      check(cudaMemcpyAsync(slot(to, index_of(from), tagged), bytes.data(), bytes.size(),
                            cudaMemcpyHostToDevice, stream()));
  }

  // Blocks with a part of so many vectors raise flags: those of the others are up from now on.
  void meet(std::size_t vectors) {
    const std::size_t blocks = std::min((vectors + 511) / 512, std::size_t{kPeerBlocks});
    for (std::size_t block = 0; block < blocks; ++block) {
      const std::uint32_t meeting = ++meetings_[block];
      for_peers([&](int peer) {
        std::memcpy(&expected_[static_cast<std::size_t>(rank_)][flag(block, peer)], &meeting, 4);
        std::memcpy(&expected_[static_cast<std::size_t>(peer)][flag(block, rank_)], &meeting, 4);
      });
    }
    check(cudaMemcpyAsync(group().flags[rank_],
                          &expected_[static_cast<std::size_t>(rank_)][flag(0, 0)], 4 * kPeerFlags,
                          cudaMemcpyHostToDevice, stream()));
  }

  int size_, rank_;
  PeerRanks& ranks_;
  std::size_t memory_;                            // bytes known of a rank's
  std::vector<std::vector<std::byte>> expected_;  // by rank
  std::byte* found_ = nullptr;                    // the same, page-locked
  std::uint32_t call_ = 0;
  std::array<std::uint32_t, kPeerBlocks> meetings_{};
};

std::vector<std::vector<bf16>> parts_of(int size, int turn, std::size_t count) {
  std::vector<std::vector<bf16>> parts;
  for (int rank = 0; rank < size; ++rank) parts.push_back(part(rank, turn, count));
  return parts;
}

class RankAloneTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (num_devices() == 0) GTEST_SKIP() << "no GPU";
  }
};

TEST_P(RankAloneTest, SumsAndShowsItsPart) {
  const int size = GetParam();
  PeerRanks ranks(size);
  for (int r = 0; r < size; ++r) {
    RankAlone rank(ranks, r);
    int turn = 0;
    for (const std::size_t count : {8, 1000, 3 * 7168, 131072})
      for (const auto sum : {peer_sum_tagged, peer_sum_one_shot, peer_sum_two_shot}) {
        const std::vector<std::vector<bf16>> parts = parts_of(size, ++turn, count);
        const std::vector<bf16> expected = sum_of_parts(size, turn, count);
        if (sum == peer_sum_tagged)
          rank.tagged(parts);
        else if (sum == peer_sum_one_shot)
          rank.one_shot(parts);
        else
          rank.two_shot(parts, expected);
        const DeviceArray<bf16> x(parts[static_cast<std::size_t>(r)]);
        check(cudaDeviceSynchronize());
        check(sum(rank.group(), {.x = x.get(), .num_elements = static_cast<std::int64_t>(count)},
                  rank.stream()));
        const std::string what = "rank " + std::to_string(r) + ", call " + std::to_string(turn);
        EXPECT_TRUE(same(read(x, count, rank.stream()), expected)) << what;
        rank.expect_memory(what);
      }
  }
}

TEST_P(RankAloneTest, NormsTheSum) {
  const int size = GetParam();
  PeerRanks ranks(size);
  for (int r = 0; r < size; ++r) {
    RankAlone rank(ranks, r);
    for (const auto& [rows, hidden] : {std::pair{1, 384}, {70, 384}, {5, 7168}, {2, 16384}}) {
      ASSERT_TRUE(peer_norm_fits(size, rows, hidden));
      const auto count = static_cast<std::size_t>(rows * hidden);
      const std::vector<std::vector<bf16>> parts = parts_of(size, rows, count);
      const DeviceArray<float> weight(norm_weight(hidden));
      const DeviceArray<bf16> delta(parts[static_cast<std::size_t>(r)]);
      const DeviceArray<bf16> summed(sum_of_parts(size, rows, count));
      const DeviceArray<bf16> residual(part(9, 6, count)), other(part(9, 6, count));
      const DeviceArray<bf16> out(part(8, 6, count)), expected(part(7, 6, count));
      rank.tagged(parts);
      check(cudaDeviceSynchronize());
      check(rms_norm(norm_params(rows, weight, summed, other, expected), rank.stream()));
      check(
          peer_norm(rank.group(), norm_params(rows, weight, delta, residual, out), rank.stream()));
      const std::string what = "rank " + std::to_string(r) + ", rows " + std::to_string(rows);
      EXPECT_TRUE(same(read(out, count, rank.stream()), read(expected, count, rank.stream())))
          << what;
      EXPECT_TRUE(same(read(residual, count, rank.stream()), read(other, count, rank.stream())))
          << what;
      rank.expect_memory(what);
    }
  }
}

TEST_P(RankAloneTest, GathersColumns) {
  const int size = GetParam();
  PeerRanks ranks(size);
  for (int r = 0; r < size; ++r) {
    RankAlone rank(ranks, r);
    for (const auto& [rows, columns] : {std::pair{1, 4}, {7, 1344}, {3, 20480}}) {
      std::vector<std::vector<float>> parts;
      for (int peer = 0; peer < size; ++peer) parts.push_back(columns_of(peer, rows, columns));
      const std::vector<float> expected = gathered(size, rows, columns);
      const DeviceArray<float> x(parts[static_cast<std::size_t>(r)]), out(expected.size());
      rank.one_shot(parts);
      check(cudaDeviceSynchronize());
      check(peer_gather(rank.group(),
                        {.x = x.get(), .out = out.get(), .num_rows = rows, .columns = columns},
                        rank.stream()));
      const std::string what = "rank " + std::to_string(r) + ", rows " + std::to_string(rows);
      EXPECT_EQ(read(out, expected.size(), rank.stream()), expected) << what;
      rank.expect_memory(what);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, RankAloneTest, ::testing::Values(2, 4, 8));

class PeerFailureTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (num_devices() == 0) GTEST_SKIP() << "no GPU";
  }
};

TEST_F(PeerFailureTest, APeerThatDoesNotComeIsNamedAfterTheDeadline) {
  PeerRanks ranks(2, 200'000'000);
  ranks.run([&](int r) {
    if (r == 1) return;
    PeerRanks::Rank& rank = ranks.rank(0);
    const DeviceArray<bf16> x(part(0, 0, 7168));
    for (int call = 0; call < 3; ++call) {  // later ones do not wait again
      check(peer_sum_tagged(rank.group, {.x = x.get(), .num_elements = 7168}, rank.stream));
      check(peer_sum_one_shot(rank.group, {.x = x.get(), .num_elements = 7168}, rank.stream));
    }
    check(cudaStreamSynchronize(rank.stream));
    EXPECT_EQ(rank.words[0], 2);
  });
}

TEST_F(PeerFailureTest, TheHostEndsAWaitInVain) {
  PeerRanks ranks(2, 60'000'000'000);
  ranks.run([&](int r) {
    if (r == 1) return;
    PeerRanks::Rank& rank = ranks.rank(0);
    const DeviceArray<bf16> x(part(0, 0, 7168));
    check(peer_sum(rank.group, {.x = x.get(), .num_elements = 7168}, rank.stream));
    EXPECT_EQ(cudaStreamQuery(rank.stream), cudaErrorNotReady);
    reinterpret_cast<volatile std::int32_t*>(rank.words)[1] = 1;
    check(cudaStreamSynchronize(rank.stream));
    EXPECT_EQ(rank.words[0], 0);
  });
}

// Microseconds of a call in a graph of 50: the median of launches of the slowest rank.
float time_sum(PeerRanks& ranks, int size, std::int64_t count, decltype(peer_sum)* sum) {
  constexpr int kCalls = 50, kLaunches = 41;
  std::vector<float> medians(static_cast<std::size_t>(size));
  ranks.run([&](int r) {
    PeerRanks::Rank& rank = ranks.rank(r);
    const DeviceArray<bf16> x(std::vector<bf16>(static_cast<std::size_t>(count), to_bf16(0)));
    ranks.meet();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    check(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal));
    for (int call = 0; call < kCalls; ++call)
      check(sum(rank.group, {.x = x.get(), .num_elements = count}, rank.stream));
    check(cudaStreamEndCapture(rank.stream, &graph));
    check(cudaGraphInstantiate(&executable, graph, 0));
    check(cudaGraphUpload(executable, rank.stream));
    ranks.meet();
    cudaEvent_t start = nullptr, stop = nullptr;
    check(cudaEventCreate(&start));
    check(cudaEventCreate(&stop));
    std::vector<float> times;
    for (int launch = 0; launch < kLaunches; ++launch) {
      ranks.meet();
      check(cudaEventRecord(start, rank.stream));
      check(cudaGraphLaunch(executable, rank.stream));
      check(cudaEventRecord(stop, rank.stream));
      check(cudaEventSynchronize(stop));
      float ms = 0;
      check(cudaEventElapsedTime(&ms, start, stop));
      times.push_back(ms * 1000 / kCalls);
    }
    std::sort(times.begin(), times.end());
    medians[static_cast<std::size_t>(r)] = times[times.size() / 2];
    ranks.meet();
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
  });
  return *std::max_element(medians.begin(), medians.end());
}

// Printed, never judged.
TEST_F(PeerFailureTest, Times) {
  if (std::getenv("COPPICE_PEER_TIMES") == nullptr) GTEST_SKIP() << "COPPICE_PEER_TIMES is not set";
  std::printf("ranks  rows      KB   tagged us  one-shot us  two-shot us\n");
  for (const int size : {2, 4, 8}) {
    if (num_devices() < size) continue;
    PeerRanks ranks(size);
    for (const int rows : {1, 2, 4, 8, 17, 36, 73, 292}) {
      const std::int64_t count = rows * 7168;
      const bool small = 2 * count <= kTaggedBytes;
      std::printf("%5d %5d %7.0f", size, rows, static_cast<double>(count) * 2 / 1024);
      for (const auto sum : {peer_sum_tagged, peer_sum_one_shot, peer_sum_two_shot})
        std::printf(" %12.2f", sum == peer_sum_tagged && !small
                                   ? 0.0
                                   : static_cast<double>(time_sum(ranks, size, count, sum)));
      std::printf("\n");
    }
  }
}

}  // namespace
}  // namespace coppice::kernels
