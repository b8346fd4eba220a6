#include "io/checkpoint.h"

#include <sys/stat.h>

#include <chrono>

#include "io/json.h"
#include "tests/io/support/files.h"
#include "tests/io/support/write_safetensors.h"

namespace coppice {
namespace {

using test::error_of;
using test::expect_contains;
using test::safetensors_bytes;
using test::TempDir;
using test::write_file;
using test::write_safetensors;

std::string shard_name(int i) {
  return "model-" + std::to_string(i) + ".safetensors";
}

// Five shards of two tensors each ("t0".."t9", F32[4] holding the tensor's number) and an index.
class Shards : public ::testing::Test {
 protected:
  void SetUp() override {
    Json weight_map;
    for (int shard = 0; shard < 5; ++shard) {
      Buffer storage = Buffer::host(64);
      const Tensor first = storage.tensor(DType::kF32, {4}),
                   second = storage.tensor(DType::kF32, {4}, 16);
      for (int i = 0; i < 4; ++i) {
        first.data<float>()[i] = static_cast<float>(2 * shard);
        second.data<float>()[i] = static_cast<float>(2 * shard + 1);
      }
      const std::string a = "t" + std::to_string(2 * shard),
                        b = "t" + std::to_string(2 * shard + 1);
      write_safetensors(dir_ / shard_name(shard), {{a, first}, {b, second}});
      weight_map[a] = shard_name(shard);
      weight_map[b] = shard_name(shard);
    }
    index_ = Json::object({{"weight_map", weight_map}});
    write_index();
  }
  void write_index() { write_file(dir_ / "model.safetensors.index.json", write_json(index_)); }
  std::string refuse(ErrorKind kind = ErrorKind::kBadFile) {
    return error_of(kind, [&] { Checkpoint checkpoint(dir_.path()); });
  }

  TempDir dir_;
  Json index_;
};

TEST_F(Shards, OneMapOverAllFiles) {
  std::int64_t last = 0;
  const Checkpoint checkpoint(dir_.path(), {.progress = [&](std::int64_t done, std::int64_t total) {
                                EXPECT_EQ(total, 5);
                                EXPECT_EQ(done, ++last);
                              }});
  EXPECT_EQ(last, 5);
  EXPECT_EQ(checkpoint.tensors().size(), 10u);
  EXPECT_EQ(checkpoint.files().size(), 5u);
  EXPECT_EQ(checkpoint.total_bytes(), 160u);
  for (int i = 0; i < 10; ++i) {
    const Tensor tensor = checkpoint.tensor("t" + std::to_string(i), DType::kF32, {4});
    EXPECT_EQ(tensor.data<float>()[3], static_cast<float>(i));
    checkpoint.dont_need(checkpoint.at("t" + std::to_string(i)));
  }
  EXPECT_FALSE(checkpoint.contains("t10"));
  const auto fails = [&](auto call) { return error_of(ErrorKind::kBadFile, call); };
  expect_contains(fails([&] { checkpoint.at("t10"); }),
                  {dir_.path().string(), "tensor 't10' is missing"});
  expect_contains(fails([&] { checkpoint.tensor("t3", DType::kBF16, {4}); }),
                  {"model-1.safetensors", "'t3'", "is F32[4], expected BF16[4]"});
  expect_contains(fails([&] {
                    checkpoint.tensor("t3", DType::kF32, {2, 2});
                  }),
                  {"is F32[4], expected F32[2, 2]"});
}

TEST_F(Shards, EachMissingShardIsNamed) {
  for (int shard = 0; shard < 5; ++shard) {
    std::filesystem::rename(dir_ / shard_name(shard), dir_ / "away");
    expect_contains(refuse(ErrorKind::kNotFound), {shard_name(shard), "no such file"});
    std::filesystem::rename(dir_ / "away", dir_ / shard_name(shard));
  }
}

TEST_F(Shards, EachMissingTensorIsNamed) {
  for (int i = 0; i < 10; ++i) {
    const std::filesystem::path shard = dir_ / shard_name(i / 2);
    const std::string whole = test::read_file(shard);
    std::string other = whole;
    other.replace(other.find("\"t" + std::to_string(i)), 2, "\"u");
    write_file(shard, other);
    expect_contains(refuse(), {shard_name(i / 2), "'t" + std::to_string(i) + "'", "missing"});
    write_file(shard, whole);
  }
}

TEST_F(Shards, IndexFaults) {
  index_["weight_map"]["t0"] = shard_name(4);
  write_index();
  expect_contains(refuse(), {shard_name(4), "'t0'", "it is in", shard_name(0)});
  for (const char* bad : {"../model-0.safetensors", "/etc/passwd", "a/b.safetensors", "", "..",
                          "config.json", "a\\b.safetensors"}) {
    index_["weight_map"]["t0"] = bad;
    write_index();
    expect_contains(refuse(), {"index.json", "'t0'", "is no name of"});
  }
  index_["weight_map"]["t0"] = 3;
  write_index();
  expect_contains(refuse(), {"'t0'", "3 is no name of"});
  index_["weight_map"] = Json::object();
  write_index();
  expect_contains(refuse(), {"weight_map", "names no tensor"});
  write_file(dir_ / "model.safetensors.index.json", "{}");
  expect_contains(refuse(), {"index.json: field 'weight_map': missing"});
  write_file(dir_ / "model.safetensors.index.json", R"({"weight_map":{"t0":"a","t0":"b"}})");
  expect_contains(refuse(), {"duplicate key 't0'"});
}

TEST_F(Shards, DuplicateAndUnlistedTensors) {
  index_["weight_map"].erase("t9");
  write_index();
  const Checkpoint checkpoint(dir_.path());
  EXPECT_EQ(checkpoint.unlisted_tensors(), 1);
  EXPECT_FALSE(checkpoint.contains("t9"));
  EXPECT_EQ(checkpoint.tensor("t8").data<float>()[0], 8.0f);
  write_file(dir_ / shard_name(4), test::read_file(dir_ / shard_name(0)));
  expect_contains(refuse(), {shard_name(4), "'t0'", "is also in", shard_name(0)});
}

TEST_F(Shards, DamagedShardIsNamed) {
  std::filesystem::resize_file(dir_ / shard_name(3), 100);
  std::filesystem::resize_file(dir_ / shard_name(4), 3);
  expect_contains(refuse(), {shard_name(3)});  // the first one, however the threads run
}

TEST(Checkpoint, PathsThatAreNoCheckpoint) {
  const TempDir dir;
  const auto open = [](const std::filesystem::path& path) { Checkpoint checkpoint(path); };
  const auto bad = [&](const std::string& name, ErrorKind kind) {
    return error_of(kind, [&] { open(dir / name); });
  };
  expect_contains(bad("", ErrorKind::kNotFound), {dir.path().string(), "no checkpoint"});
  expect_contains(bad("none", ErrorKind::kNotFound), {"none: no such file or folder"});
  write_file(dir / "notes.txt", "x");
  expect_contains(bad("notes.txt", ErrorKind::kBadFile), {"notes.txt: neither a folder"});
  std::filesystem::create_directory(dir / "x.safetensors");
  expect_contains(bad("", ErrorKind::kBadFile),
                  {"x.safetensors: not a regular file but a directory"});
  std::filesystem::remove(dir / "x.safetensors");
  std::filesystem::create_symlink("/nonexistent", dir / "x.safetensors");
  expect_contains(bad("", ErrorKind::kNotFound), {"x.safetensors: no such file"});
  std::filesystem::remove(dir / "x.safetensors");
  ASSERT_EQ(mkfifo((dir / "x.safetensors").c_str(), 0600), 0);
  expect_contains(bad("", ErrorKind::kBadFile), {"x.safetensors: not a regular file"});
  std::filesystem::remove(dir / "x.safetensors");
  std::filesystem::create_symlink("/dev/zero", dir / "x.safetensors");
  expect_contains(bad("", ErrorKind::kBadFile), {"x.safetensors: not a regular file"});
  std::filesystem::remove(dir / "x.safetensors");
  write_file(dir / "pytorch_model.bin", "x");
  expect_contains(bad("", ErrorKind::kUnsupported), {"only PyTorch .bin files"});
  write_file(dir / "a.safetensors", "x");
  write_file(dir / "b.safetensors", "x");
  expect_contains(bad("", ErrorKind::kBadFile), {"2 .safetensors files and no"});
}

TEST(Checkpoint, UnalignedTensorsAreCopied) {
  const TempDir dir;
  std::string data(5, '\0');
  const float value = 2.5f;
  std::memcpy(data.data() + 1, &value, sizeof(value));
  std::string header =
      R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"f":{"dtype":"F32","shape":[],"data_offsets":[1,5]}})";
  while ((header.size() + 8) % 4 != 0) header += ' ';
  write_file(dir / "model.safetensors", safetensors_bytes(header, data));
  const Checkpoint checkpoint(dir.path());
  const Tensor tensor = checkpoint.tensor("f");
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.raw()) % 4, 0u);
  EXPECT_EQ(tensor.data<float>()[0], 2.5f);
  EXPECT_EQ(checkpoint.tensor("f").raw(), tensor.raw());
}

TEST(Checkpoint, TypesWithoutATensorView) {
  const TempDir dir;
  write_file(dir / "model.safetensors",
             safetensors_bytes(R"({"d":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},)"
                               R"("five":{"dtype":"U8","shape":[1,1,1,1,1],"data_offsets":[8,9]}})",
                               std::string(9, '\0')));
  const Checkpoint checkpoint(dir.path());
  EXPECT_EQ(checkpoint.bytes(checkpoint.at("d")).size(), 8u);
  const auto fails = [&](const char* name) {
    return error_of(ErrorKind::kUnsupported, [&] { checkpoint.tensor(name); });
  };
  expect_contains(fails("d"), {"model.safetensors", "'d'", "F64"});
  expect_contains(fails("five"), {"'five'", "more than four"});
}

// The headers of a checkpoint as large as Kimi-K2.6: 64 shards, 208,576 tensors.
TEST(Checkpoint, ManyTensors) {
  const TempDir dir;
  constexpr int kShards = 64, kPerShard = 3259;
  Json::Object weight_map;
  for (int shard = 0; shard < kShards; ++shard) {
    std::vector<TensorSpec> specs;
    for (int i = 0; i < kPerShard; ++i) {
      const int id = shard * kPerShard + i;
      specs.push_back({"language_model.model.layers." + std::to_string(id / 3456) +
                           ".mlp.experts." + std::to_string(id) + ".down_proj.weight_shape",
                       StorageType::kI32,
                       {2}});
      weight_map.emplace_back(specs.back().name, shard_name(shard));
    }
    SafetensorsWriter writer(dir / shard_name(shard), specs);
    writer.write(std::vector<std::byte>(std::size_t{kPerShard} * 8));
    writer.finish();
  }
  write_file(dir / "model.safetensors.index.json",
             write_json(Json::object({{"weight_map", std::move(weight_map)}})));
  const auto start = std::chrono::steady_clock::now();
  const Checkpoint checkpoint(dir.path());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(checkpoint.tensors().size(), std::size_t{kShards * kPerShard});
  EXPECT_EQ(checkpoint.at(checkpoint.tensors().back().name).file, 63u);
  std::printf("opened %d tensors in %d shards in %.2f s\n", kShards * kPerShard, kShards,
              seconds.count());
}

}  // namespace
}  // namespace coppice
