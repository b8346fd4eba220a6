// 300 damaged checkpoints (fixed seed), each refused with one line that names a file and a cause;
// and some thousands of random byte changes that may be harmless but never crash. The 300 go
// through the library, and through `coppice inspect --values` where COPPICE_BINARY names it.
#include <sys/wait.h>

#include <cstdlib>
#include <random>

#include "io/gguf.h"
#include "io/inspect_report.h"
#include "tests/io/support/files.h"
#include "tests/io/support/gguf_builder.h"
#include "tests/io/support/tiny_checkpoint.h"

namespace coppice {
namespace {

namespace fs = std::filesystem;
using test::TinyCheckpoint;
using test::TinyTensor;

constexpr int kMutations = 300;
constexpr const char* kIndex = "model.safetensors.index.json";

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t below(std::uint64_t count) { return engine_() % count; }
  std::uint64_t bits() { return engine_(); }
  template <typename T>
  const T& pick(const std::vector<T>& items) {
    return items[below(items.size())];
  }

 private:
  std::mt19937_64 engine_;
};

void edit_file(const fs::path& path, const std::function<void(std::string&)>& edit) {
  std::string bytes = test::read_file(path);
  edit(bytes);
  test::write_file(path, bytes);
}

TinyTensor& any_tensor(TinyCheckpoint& model, Random& random) {
  auto& shard = model.shards[random.below(2)];
  return shard[random.below(shard.size())];
}

std::string any_expert(Random& random) {
  const std::vector<std::string> projections = {"gate_proj", "up_proj", "down_proj"};
  return "language_model.model.layers.1.mlp.experts." + std::to_string(random.below(4)) + "." +
         random.pick(projections);
}

std::string any_shard(Random& random) {
  return test::tiny_shard_name(random.below(2));
}

std::size_t header_length(const std::string& bytes) {
  return bytes.find_last_of('}') == std::string::npos
             ? 0
             : bytes.find_last_not_of(' ', 7 + static_cast<unsigned char>(bytes[0]) +
                                               256u * static_cast<unsigned char>(bytes[1]));
}

// A position of a digit inside the value that follows a random `"key":`.
std::size_t any_digit_after(const std::string& bytes, const std::string& key, Random& random) {
  std::vector<std::size_t> digits;
  for (std::size_t at = bytes.find(key); at != std::string::npos; at = bytes.find(key, at + 1))
    for (std::size_t i = at + key.size(); bytes[i] != ']'; ++i)
      if (bytes[i] >= '0' && bytes[i] <= '9') digits.push_back(i);
  return random.pick(digits);
}

void change_digit(std::string& bytes, const std::string& key, Random& random) {
  char& digit = bytes[any_digit_after(bytes, key, random)];
  digit = static_cast<char>('0' + (digit - '0' + 1 + static_cast<int>(random.below(9))) % 10);
}

// Damages the model before it is written, or files of `dir` afterwards (`written`).
struct Mutation {
  const char* name;
  std::function<void(TinyCheckpoint&, Random&)> model;
  std::function<void(const fs::path&, Random&)> written;
};

std::vector<Mutation> file_mutations() {
  return {
      {"truncated shard",
       {},
       [](const fs::path& dir, Random& random) {
         const fs::path shard = dir / any_shard(random);
         fs::resize_file(shard, random.below(fs::file_size(shard)));
       }},
      {"longer shard",
       {},
       [](const fs::path& dir, Random& random) {
         edit_file(dir / any_shard(random),
                   [&](std::string& bytes) { bytes.append(1 + random.below(100), 'x'); });
       }},
      {"header length",
       {},
       [](const fs::path& dir, Random& random) {
         edit_file(dir / any_shard(random), [&](std::string& bytes) {
           const std::uint64_t changed = static_cast<std::uint64_t>(bytes[random.below(8)]) ^
                                         (random.bits() >> random.below(64)) ^ 0x10000000;
           std::memcpy(bytes.data(), &changed, 8);
         });
       }},
      {"control character in the header",
       {},
       [](const fs::path& dir, Random& random) {
         edit_file(dir / any_shard(random), [&](std::string& bytes) {
           bytes[8 + random.below(header_length(bytes) - 8)] = '\x01';
         });
       }},
      {"digit of an offset",
       {},
       [](const fs::path& dir, Random& random) {
         edit_file(dir / any_shard(random),
                   [&](std::string& bytes) { change_digit(bytes, "\"data_offsets\":", random); });
       }},
      {"digit of a shape",
       {},
       [](const fs::path& dir, Random& random) {
         edit_file(dir / any_shard(random),
                   [&](std::string& bytes) { change_digit(bytes, "\"shape\":", random); });
       }},
      {"another file in place of one",
       {},
       [](const fs::path& dir, Random& random) {
         const std::vector<std::string> contents = {
             "version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
             "<!DOCTYPE html>",
             std::string("\x1f\x8b\x08\0", 4),
             "",
             "PK\x03\x04zip",
             "null",
             "\n\n",
             "GGUF"};
         const std::vector<std::string> files = {any_shard(random), kIndex, "config.json"};
         test::write_file(dir / random.pick(files), random.pick(contents));
       }},
      {"file missing or a folder",
       {},
       [](const fs::path& dir, Random& random) {
         const std::vector<std::string> files = {any_shard(random), "config.json"};
         const fs::path path = dir / random.pick(files);
         fs::remove(path);
         if (random.below(2) == 0) fs::create_directory(path);
       }},
      {"truncated JSON",
       {},
       [](const fs::path& dir, Random& random) {
         const fs::path path = dir / (random.below(2) == 0 ? kIndex : "config.json");
         fs::resize_file(path, random.below(fs::file_size(path) - 2));
       }},
  };
}

std::vector<Mutation> model_mutations() {
  return {
      {"type of another size",
       [](TinyCheckpoint& model, Random& random) {
         any_tensor(model, random).type =
             random.below(2) == 0 ? StorageType::kU8 : StorageType::kF64;
       },
       {}},
      {"renamed tensor",
       [](TinyCheckpoint& model, Random& random) { any_tensor(model, random).name += "\nx"; },
       {}},
      {"index names another file",
       [](TinyCheckpoint& model, Random& random) {
         const std::vector<std::string> files = {"../../etc/passwd",    "/dev/zero", "config.json",
                                                 "model-7.safetensors", "",          ".."};
         model.index["weight_map"][any_tensor(model, random).name] = random.pick(files);
       },
       {}},
      {"tensor in two shards",
       [](TinyCheckpoint& model, Random& random) {
         const std::size_t shard = random.below(2);
         model.shards[1 - shard].push_back(random.pick(model.shards[shard]));
       },
       {}},
      {"tensor twice in one shard",
       [](TinyCheckpoint& model, Random& random) {
         auto& shard = model.shards[random.below(2)];
         shard.push_back(TinyTensor(random.pick(shard)));
       },
       {}},
      {"shape that overflows",
       [](TinyCheckpoint& model, Random& random) {
         any_tensor(model, random).shape = {std::int64_t{1} << (32 + random.below(30)),
                                            std::int64_t{1} << (32 + random.below(30)),
                                            static_cast<std::int64_t>(random.below(3))};
       },
       {}},
      {"expert tensor missing",
       [](TinyCheckpoint& model, Random& random) {
         const std::vector<std::string> parts = {".weight_packed", ".weight_scale",
                                                 ".weight_shape"};
         model.erase(any_expert(random) + random.pick(parts));
       },
       {}},
      {"wrong weight_shape",
       [](TinyCheckpoint& model, Random& random) {
         model.find(any_expert(random) + ".weight_shape").bytes[random.below(8)] ^= '\x40';
       },
       {}},
      {"bad scale",
       [](TinyCheckpoint& model, Random& random) {
         std::string& bytes = model.find(any_expert(random) + ".weight_scale").bytes;
         const std::vector<std::uint16_t> bad = {0x7fc0, 0x7f80, 0xff80, 0xbf00};
         const std::uint16_t value = random.pick(bad);
         std::memcpy(bytes.data() + 2 * random.below(bytes.size() / 2), &value, 2);
       },
       {}},
      {"config field",
       [](TinyCheckpoint& model, Random& random) {
         const std::vector<std::string> fields = {"num_hidden_layers",   "hidden_size",
                                                  "n_routed_experts",    "vocab_size",
                                                  "num_experts_per_tok", "first_k_dense_replace"};
         const std::vector<Json> values = {Json("2"),        Json(2.5),        Json(true),
                                           Json::array({2}), Json(UINT64_MAX), Json(-1),
                                           Json::object()};
         model.config["text_config"][random.pick(fields)] = random.pick(values);
       },
       {}},
      {"quantisation declared otherwise",
       [](TinyCheckpoint& model, Random& random) {
         Json& quantization = model.config["quantization_config"];
         Json& weights = quantization["config_groups"]["group_0"]["weights"];
         const std::vector<std::string> methods = {"awq", "modelopt", "mxfp4", "fp8"};
         switch (random.below(5)) {
           case 0:
             quantization["quant_method"] = random.pick(methods);
             break;
           case 1:
             weights["group_size"] = static_cast<int>(random.below(31)) - 1;
             break;
           case 2:
             weights["num_bits"] = 8;
             break;
           case 3:
             quantization["format"] = "nvfp4-pack-quantized";
             break;
           default:
             model.config.erase("quantization_config");
         }
       },
       {}},
  };
}

// The line a damaged checkpoint is refused with; empty when nothing was found.
std::string refusal(const fs::path& path) {
  try {
    const InspectReport report = inspect_checkpoint(path, {}, {.values = true});
    return report.faults.empty() ? "" : report.faults.front().message;
  } catch (const Error& error) {
    return error.what();
  }
}

void expect_one_line(const std::string& line, const fs::path& dir, const std::string& what) {
  EXPECT_FALSE(line.empty()) << what << ": no fault found";
  EXPECT_NE(line.find(dir.string()), std::string::npos) << what << ": " << line;
  EXPECT_GT(line.size(), dir.string().size() + 10) << what << ": " << line;
  EXPECT_LT(line.size(), 700u) << what << ": " << line;
  for (const char c : line) EXPECT_GE(static_cast<unsigned char>(c), 0x20) << what << ": " << line;
}

// The i-th damaged checkpoint, in `dir`; its name.
class Mutations {
 public:
  Mutations() : mutations_(file_mutations()) {
    for (Mutation& mutation : model_mutations()) mutations_.push_back(std::move(mutation));
  }
  std::string write_next(const fs::path& dir) {
    const Mutation& mutation = mutations_[static_cast<std::size_t>(next_) % mutations_.size()];
    TinyCheckpoint model = test::make_tiny_checkpoint();
    if (mutation.model) mutation.model(model, random_);
    model.write(dir);
    if (mutation.written) mutation.written(dir, random_);
    return std::to_string(next_++) + " " + mutation.name;
  }

 private:
  std::vector<Mutation> mutations_;
  Random random_{20260611};
  int next_ = 0;
};

TEST(Mutation, EveryDamageIsOneLine) {
  Mutations mutations;
  for (int i = 0; i < kMutations; ++i) {
    const test::TempDir dir;
    const std::string name = mutations.write_next(dir.path());
    expect_one_line(refusal(dir.path()), dir.path(), name);
  }
  const test::TempDir dir;
  test::make_tiny_checkpoint().write(dir.path());
  EXPECT_EQ(refusal(dir.path()), "");
}

// What the binary says on standard error, and how it ends; -1: by a signal.
struct Ran {
  int status = -1;
  std::string said;
};

Ran run_inspect(const std::string& binary, const fs::path& path, const fs::path& scratch) {
  const std::string command = "'" + binary + "' inspect --values '" + path.string() +
                              "' > /dev/null 2> '" + (scratch / "said").string() + "'";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, test::read_file(scratch / "said")};
}

TEST(Mutation, TheBinaryRefusesEveryDamageInOneLine) {
  const char* binary = std::getenv("COPPICE_BINARY");
  if (binary == nullptr) GTEST_SKIP() << "COPPICE_BINARY names no coppice";
  // damaged file, not found, unsupported
  const int documented[] = {3, 4, 5};
  Mutations mutations;
  const test::TempDir scratch;
  for (int i = 0; i < kMutations; ++i) {
    const test::TempDir dir;
    const std::string name = mutations.write_next(dir.path());
    Ran ran = run_inspect(binary, dir.path(), scratch.path());
    EXPECT_EQ(std::count(std::begin(documented), std::end(documented), ran.status), 1)
        << name << ": exit " << ran.status << ", " << ran.said;
    ASSERT_TRUE(ran.said.starts_with("coppice: ") && ran.said.ends_with('\n'))
        << name << ": " << ran.said;
    ran.said.pop_back();
    expect_one_line(ran.said, dir.path(), name);
  }
  // The undamaged one has no fault of format, but its config is too short to make a network of.
  const test::TempDir dir;
  test::make_tiny_checkpoint().write(dir.path());
  const Ran ran = run_inspect(binary, dir.path(), scratch.path());
  EXPECT_EQ(ran.status, 3);
  test::expect_contains(ran.said, {"config.json: field 'text_config.intermediate_size': missing"});
}

TEST(Mutation, RandomBytesNeverCrash) {
  Random random(7);
  const std::string shard = test::tiny_shard(test::make_tiny_checkpoint().shards[1]);
  const test::TempDir dir;
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string bytes = shard;
    // Mostly in the header, which is where the parser looks.
    for (std::uint64_t change = 0; change <= random.below(4); ++change)
      bytes[random.below(random.below(4) == 0 ? bytes.size() : header_length(shard))] =
          static_cast<char>(random.bits());
    test::write_file(dir / "x.safetensors", bytes);
    const std::string line = refusal(dir / "x.safetensors");
    refused += line.empty() ? 0 : 1;
    if (!line.empty()) expect_one_line(line, dir.path(), std::to_string(i));
  }
  EXPECT_GT(refused, 2000);
}

std::string small_gguf() {
  return test::GgufBuilder()
      .string("general.architecture", "llama")
      .string("tokenizer.ggml.model", "gpt2")
      .strings("tokenizer.ggml.tokens", {"a", "b", "ab"})
      .strings("tokenizer.ggml.merges", {"a b"})
      .key("llama.rope.freq_base", 6, test::raw(10000.0f))
      .tensor("token_embd.weight", {32, 3}, 8, 0)
      .tensor("blk.0.attn_q.weight", {32, 2}, 2, 128)
      .tensor("output_norm.weight", {32}, 0, 192)
      .build(std::string(320, '\0'));
}

TEST(Mutation, RandomGgufBytesNeverCrash) {
  Random random(11);
  const std::string whole = small_gguf();
  const test::TempDir dir;
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string bytes = whole;
    for (std::uint64_t change = 0; change <= random.below(4); ++change) {
      const std::size_t at = random.below(whole.size() - 320);
      if (random.below(3) == 0 && at + 8 < bytes.size()) {
        const std::uint64_t wild = random.bits() >> random.below(64);
        std::memcpy(bytes.data() + at, &wild, 8);
      } else {
        bytes[at] = static_cast<char>(random.bits());
      }
    }
    if (random.below(8) == 0) bytes.resize(random.below(bytes.size()));
    test::write_file(dir / "x.gguf", bytes);
    try {
      const GgufFile file(dir / "x.gguf");
      read_gguf_vocabulary(file.fields());
    } catch (const Error& error) {
      ++refused;
      expect_one_line(error.what(), dir.path(), std::to_string(i));
    }
  }
  EXPECT_GT(refused, 2000);
  test::write_file(dir / "x.gguf", whole);
  EXPECT_EQ(refusal(dir / "x.gguf"), "");
}

}  // namespace
}  // namespace coppice
