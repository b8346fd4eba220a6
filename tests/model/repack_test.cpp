// `coppice repack`: the bytes hold the experts they were made from, a network loaded from them is
// the same, and what does not fit is refused in one line.
#include "model/repack_checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "backend/factory/make_backend.h"
#include "backend/trace/forwarding_backend.h"
#include "comm/rank_threads.h"
#include "io/json.h"
#include "model/load_model.h"
#include "model/repack_header.h"
#include "model/weight_loader.h"
#include "tests/io/support/files.h"
#include "tests/model/support/checkpoint_files.h"
#include "tests/support/golden_file.h"
#include "tests/support/model_driver.h"

namespace coppice {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::expect_contains;
using test::TempDir;

const std::vector<std::int32_t> kPrompt = {5, 17, 299, 0, 42, 42, 7, 256, 1, 2, 3};

// One INT4 matrix of a layer's experts.
struct Int4Matrix {
  Int4Matrix(std::int64_t num_rows, std::int64_t num_cols)
      : rows(num_rows),
        cols(num_cols),
        words(static_cast<std::size_t>(rows * cols / 8)),
        scales(static_cast<std::size_t>(rows * cols / 32)) {}
  HostMatrix view() const {
    return {WeightFormat::kInt4Group32, rows, cols, words.data(), scales.data()};
  }
  bool operator==(const Int4Matrix&) const = default;

  std::int64_t rows, cols;
  std::vector<std::uint32_t> words;
  std::vector<std::uint16_t> scales;
};

// Reads blobs by the words of kernels/moe/expert_blob.h, not by the code that writes them: cells of
// 32 outputs x 64 inputs, eight to a step, which share the inputs of 32 outputs from 1024 inputs
// on.
class BlobReader {
 public:
  BlobReader(std::span<const std::byte> bytes, std::int64_t inputs)
      : bytes_(bytes),
        sharing_(inputs >= 1024 ? 8 : 1),
        steps_((inputs + 128 * sharing_ - 1) / (128 * sharing_) * 2) {}

  // Of the output in eighth-row `eight` (8 outputs), row `g` in it.
  std::uint32_t word(std::int64_t eight, std::int64_t g, std::int64_t input) const {
    std::uint32_t mixed = 0, word = 0;
    std::memcpy(
        &mixed,
        cell(eight, input) + (input % 64 / 32 * 128 + (g * 4 + input % 32 / 8) * 4 + eight % 4) * 4,
        sizeof mixed);
    for (unsigned i = 0; i < 8; ++i)  // even ones in the low half, odd ones in the high half
      word |= (mixed >> (i % 2 * 16 + i / 2 * 4) & 15u) << (4 * i);
    return word;
  }
  std::uint16_t scale(std::int64_t eight, std::int64_t g, std::int64_t input) const {
    std::uint16_t value = 0;
    std::memcpy(&value, cell(eight, input) + 1024 + (g * 8 + input % 64 / 32 * 4 + eight % 4) * 2,
                sizeof value);
    return value;
  }

 private:
  const std::byte* cell(std::int64_t eight, std::int64_t input) const {
    const std::int64_t tile = eight / 4, column = input / 64, tiles = 8 / sharing_;
    const std::int64_t index = (tile / tiles * steps_ + column / sharing_) * 8 +
                               tile % tiles * sharing_ + column % sharing_;
    return bytes_.data() + index * 1152;
  }
  std::span<const std::byte> bytes_;
  std::int64_t sharing_, steps_;
};

// matrix row r lies at eighth-row eight_of(r / 8).
template <typename EightOf>
Int4Matrix read_matrix(const BlobReader& blob, std::int64_t rows, std::int64_t cols,
                       const EightOf& eight_of) {
  Int4Matrix matrix(rows, cols);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; c += 8) {
      matrix.words[static_cast<std::size_t>((r * cols + c) / 8)] =
          blob.word(eight_of(r / 8), r % 8, c);
      matrix.scales[static_cast<std::size_t>((r * cols + c) / 32)] =
          blob.scale(eight_of(r / 8), r % 8, c);
    }
  return matrix;
}

struct Expert {
  Int4Matrix gate, up, down;
  ExpertSource view() const { return {gate.view(), up.view(), down.view()}; }
};

Expert read_expert(const RepackedExperts& all, std::int64_t index) {
  const auto part = [&](std::span<const std::byte> bytes) {
    const std::size_t size = bytes.size() / static_cast<std::size_t>(all.num_experts);
    return bytes.subspan(static_cast<std::size_t>(index) * size, size);
  };
  const std::int64_t hidden = all.hidden_size, width = all.intermediate_size;
  const BlobReader w13(part(all.w13), hidden), w2(part(all.w2), width);
  // Eight rows of gate, then the same eight of up.
  return {read_matrix(w13, width, hidden, [](std::int64_t eight) { return 2 * eight; }),
          read_matrix(w13, width, hidden, [](std::int64_t eight) { return 2 * eight + 1; }),
          read_matrix(w2, hidden, width, [](std::int64_t eight) { return eight; })};
}

// A CPU that takes the CUDA layout, by turning it back.
class ReadsBlobs : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  std::string expert_layout() const override { return make_expert_repacker("cuda").layout; }
  ExpertWeights load_repacked_experts(const RepackedExperts& repacked) override {
    std::vector<Expert> experts;
    std::vector<ExpertSource> views;
    for (std::int64_t i = 0; i < repacked.num_experts; ++i)
      experts.push_back(read_expert(repacked, i));
    for (const Expert& expert : experts) views.push_back(expert.view());
    ++num_loaded;
    return ForwardingBackend::load_experts(views);
  }
  int num_loaded = 0;
};

std::unique_ptr<Backend> cpu(Communicator* communicator = nullptr) {
  return make_backend({.device = "cpu-reference", .num_threads = 1, .communicator = communicator});
}

RepackResult repack_to(const fs::path& folder, const std::string& model, std::int64_t num_ranks) {
  return repack_checkpoint(model, folder,
                           {.repacker = make_expert_repacker("cuda", 2), .num_ranks = num_ranks});
}

std::vector<float> logits_of(Backend& backend, const std::string& path,
                             const ParallelConfig& parallel = {}) {
  const auto model =
      load_model(backend, path, {.max_rows = 16, .max_positions = 128, .parallel = parallel});
  return testing::ModelDriver(backend, *model, 64).prefill(kPrompt, 16).logits;
}

// Inputs of all kinds: padded cells, eight warps that share a row's inputs or not.
TEST(Repack, BlobsHoldTheExpertsTheyWereMadeFrom) {
  std::mt19937 random(3);
  for (const auto& [hidden, width] : {std::pair{384, 128}, {384, 32}, {1120, 96}, {1024, 1056}}) {
    SCOPED_TRACE(std::to_string(hidden) + " x " + std::to_string(width));
    std::vector<Expert> experts(3, {{width, hidden}, {width, hidden}, {hidden, width}});
    std::vector<ExpertSource> views;
    for (Expert& expert : experts) {
      for (Int4Matrix* matrix : {&expert.gate, &expert.up, &expert.down}) {
        for (std::uint32_t& word : matrix->words) word = static_cast<std::uint32_t>(random());
        for (std::uint16_t& scale : matrix->scales) scale = static_cast<std::uint16_t>(random());
      }
      views.push_back(expert.view());
    }
    const RepackedBlobs blobs = make_expert_repacker("cuda", 2).repack(views);
    const RepackedExperts all = {3, hidden, width, blobs.w13, blobs.w2};
    for (std::int64_t i = 0; i < 3; ++i) {
      const Expert read = read_expert(all, i);
      const Expert& made = experts[static_cast<std::size_t>(i)];
      EXPECT_EQ(read.gate, made.gate);
      EXPECT_EQ(read.up, made.up);
      EXPECT_EQ(read.down, made.down);
    }
  }
}

TEST(Repack, ANetworkLoadedFromItIsTheSame) {
  const TempDir dir;
  const RepackResult result = repack_to(dir / "one", testing::kTinyK2, 1);
  EXPECT_EQ(result.layers, 5);
  EXPECT_GT(result.written_bytes, result.source_bytes / 2);
  EXPECT_TRUE(fs::exists(dir / "one" / "tokenizer_config.json"));
  check_loadable((dir / "one").string());
  ReadsBlobs backend(cpu());
  EXPECT_EQ(logits_of(backend, (dir / "one").string()), logits_of(*cpu(), testing::kTinyK2));
  EXPECT_EQ(backend.num_loaded, 5);
}

TEST(Repack, EveryRankFindsItsOwnPart) {
  const TempDir dir;
  repack_to(dir / "two", testing::kTinyK2, 2);
  const auto run = [](const std::string& path) {
    RankThreads threads(2);
    std::vector<std::vector<float>> logits(2);
    threads.run([&](std::int64_t rank) {
      ReadsBlobs backend(cpu(&threads.communicator(rank)));
      logits[static_cast<std::size_t>(rank)] = logits_of(backend, path, {rank, 2});
    });
    return logits;
  };
  EXPECT_EQ(run((dir / "two").string()), run(testing::kTinyK2));
}

// A repacked tiny-k2 with one thing changed.
class RepackRefusals : public ::testing::Test {
 protected:
  void SetUp() override { repack_to(folder(), testing::kTinyK2, 1); }
  fs::path folder() const { return dir_ / "repacked"; }
  std::string refuse(ErrorKind kind, Backend& backend, const ParallelConfig& parallel = {}) {
    const std::string message =
        error_of(kind, [&] { logits_of(backend, folder().string(), parallel); });
    expect_contains(message, {folder().string()});
    return message;
  }
  void edit(const char* file, const std::string& key, Json value) {
    fs::permissions(folder() / file, fs::perms::owner_write, fs::perm_options::add);
    Json json = read_json_file(folder() / file);
    json[key] = std::move(value);
    test::write_file(folder() / file, write_json(json));
  }

  TempDir dir_;
  ReadsBlobs backend_{cpu()};
};

TEST_F(RepackRefusals, BackendsOfAnotherLayout) {
  expect_contains(refuse(ErrorKind::kUnsupported, *cpu()),
                  {kRepackHeaderName, "'layout'", "cpu", "as they are published"});
  edit(kRepackHeaderName, "layout", "older");
  expect_contains(refuse(ErrorKind::kUnsupported, backend_), {"'layout'", "older", "again"});
}

TEST_F(RepackRefusals, KeysOfAnotherVersion) {
  edit(kRepackHeaderName, "group_size", 64);
  expect_contains(refuse(ErrorKind::kBadFile, backend_), {"'group_size'", "unknown"});
}

TEST_F(RepackRefusals, AnotherNumberOfRanks) {
  expect_contains(refuse(ErrorKind::kUnsupported, backend_, {0, 2}),
                  {"'tensor_parallel_size': is 1", "2"});
}

TEST_F(RepackRefusals, AnotherVersionOrNetwork) {
  edit(kRepackHeaderName, "format", "coppice-repack-0");
  expect_contains(refuse(ErrorKind::kBadFile, backend_), {"'format'", "coppice-repack-0"});
  edit(kRepackHeaderName, "format", "coppice-repack-1");
  edit(kRepackHeaderName, "moe_intermediate_size", 64);
  expect_contains(refuse(ErrorKind::kBadFile, backend_), {"'moe_intermediate_size': is 64", "128"});
}

TEST_F(RepackRefusals, AChangedByte) {
  const fs::path file = folder() / "experts-00003.safetensors";
  std::string bytes = test::read_file(file);
  bytes[bytes.size() / 2] ^= 4;
  test::write_file(file, bytes);
  expect_contains(refuse(ErrorKind::kBadFile, backend_),
                  {"experts-00003.safetensors", "model.layers.3.mlp.experts.rank0", "checksum"});
}

TEST_F(RepackRefusals, WhatCannotBeRepacked) {
  const auto refuse_source = [&](ErrorKind kind, const std::string& model, std::int64_t ranks) {
    return error_of(kind, [&] { repack_to(dir_ / "other", model, ranks); });
  };
  expect_contains(refuse_source(ErrorKind::kUnsupported, folder().string(), 1), {"already"});
  expect_contains(refuse_source(ErrorKind::kUnsupported, testing::kTinyK2, 8),
                  {"moe_intermediate_size 128"});
  EXPECT_FALSE(fs::exists(dir_ / "other"));
  expect_contains(
      error_of(ErrorKind::kInvalidArgument, [&] { repack_to(folder(), testing::kTinyK2, 1); }),
      {"not an empty folder"});
  const TempDir dense;
  const ModelConfig config = test::small_qwen3_config();
  test::write_file(dense / "config.json", test::config_json(config));
  test::write_tensors(test::random_tensors(list_weights(config), 1, ""), dense.path().string());
  expect_contains(refuse_source(ErrorKind::kUnsupported, dense.path().string(), 1),
                  {"no routed experts"});
}

}  // namespace
}  // namespace coppice
