#include "client/datasets.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <sstream>

#include "base/error.h"
#include "io/json.h"
#include "io/json_field.h"
#include "io/text_file.h"

namespace coppice {
namespace {

// Deterministic everywhere, unlike std::uniform_int_distribution.
class Picker {
 public:
  explicit Picker(std::uint64_t seed) : engine_(seed) {}
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }

 private:
  std::mt19937_64 engine_;
};

// Tokens that may stand anywhere: ASCII text, no marks.
std::vector<std::int32_t> plain_tokens(const Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids;
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    if (bytes.empty() || tokenizer.is_added(id)) continue;
    if (std::all_of(bytes.begin(), bytes.end(), [](char c) { return c >= ' ' && c <= '~'; }))
      ids.push_back(id);
  }
  if (ids.empty())
    throw Error(ErrorKind::kUnsupported, "--dataset-name random: the vocabulary has no ASCII text");
  return ids;
}

// Neighbouring tokens may merge when the text is read again: lengthens or cuts until the count is
// right, or stays close if it cannot be hit.
BenchPrompt of_length(std::vector<std::int32_t> ids, const std::vector<std::int32_t>& plain,
                      const Tokenizer& tokenizer, Picker& picker) {
  const std::size_t wanted = ids.size();
  BenchPrompt prompt;
  for (int attempt = 0; attempt < 10; ++attempt) {
    prompt.text = tokenizer.decode(ids);
    ids = tokenizer.encode(prompt.text);
    prompt.num_tokens = std::ssize(ids) + std::ssize(tokenizer.prompt_prefix());
    if (ids.size() == wanted) break;
    if (ids.size() > wanted) ids.resize(wanted);
    while (ids.size() < wanted)
      ids.push_back(plain[static_cast<std::size_t>(picker.between(0, std::ssize(plain) - 1))]);
  }
  return prompt;
}

std::vector<BenchPrompt> random_prompts(const DatasetOptions& options, const Tokenizer& tokenizer) {
  if (options.random_input_len < 1 || options.random_output_len < 1)
    throw Error(ErrorKind::kInvalidArgument, "--random-input-len, --random-output-len: at least 1");
  if (!(options.random_range_ratio >= 0 && options.random_range_ratio < 1))
    throw Error(ErrorKind::kInvalidArgument, "--random-range-ratio: 0 <= ratio < 1");
  const std::vector<std::int32_t> plain = plain_tokens(tokenizer);
  Picker picker(options.seed);
  const auto length = [&](std::int64_t middle) {
    const double spread = options.random_range_ratio * static_cast<double>(middle);
    const auto low = static_cast<std::int64_t>(std::floor(static_cast<double>(middle) - spread));
    const auto high = static_cast<std::int64_t>(std::ceil(static_cast<double>(middle) + spread));
    return picker.between(std::max<std::int64_t>(low, 1), high);
  };
  const auto append = [&](std::int64_t count, std::vector<std::int32_t>& ids) {
    // A run of the vocabulary from a random place, as vLLM takes it.
    const std::int64_t start = picker.between(0, std::ssize(plain) - 1);
    for (std::int64_t i = 0; i < count; ++i)
      ids.push_back(plain[static_cast<std::size_t>((start + i) % std::ssize(plain))]);
  };
  std::vector<std::int32_t> prefix;
  append(options.random_prefix_len, prefix);
  const std::int64_t num_prefix = std::ssize(tokenizer.prompt_prefix());  // what a server adds
  std::vector<BenchPrompt> prompts;
  while (std::ssize(prompts) < options.num_prompts) {
    std::vector<std::int32_t> ids = prefix;
    append(std::max<std::int64_t>(length(options.random_input_len) - num_prefix, 1), ids);
    prompts.push_back(of_length(std::move(ids), plain, tokenizer, picker));
    prompts.back().output_len = length(options.random_output_len);
  }
  return prompts;
}

void require_path(const DatasetOptions& options) {
  if (options.path.empty())
    throw Error(ErrorKind::kInvalidArgument,
                "--dataset-name " + options.name + ": needs --dataset-path FILE");
}

// vLLM's filter: no exchange that is too short to measure, none that is too long for a small model.
std::vector<BenchPrompt> sharegpt_prompts(const DatasetOptions& options,
                                          const Tokenizer& tokenizer) {
  constexpr std::int64_t kShortest = 4, kLongestPrompt = 1024, kLongest = 2048;
  require_path(options);
  const Json json = read_json_file(options.path);
  std::vector<BenchPrompt> prompts;
  for (const JsonField& entry : JsonField(json, options.path).elements()) {
    const auto turns = entry.find("conversations");
    if (!turns || turns->value().size() < 2) continue;
    const std::vector<JsonField> both = turns->elements();
    BenchPrompt prompt{.text = both[0].get<std::string>("value")};
    prompt.num_tokens = std::ssize(tokenizer.encode_prompt(prompt.text));
    prompt.output_len = options.sharegpt_output_len > 0
                            ? options.sharegpt_output_len
                            : std::ssize(tokenizer.encode(both[1].get<std::string>("value")));
    if (prompt.num_tokens < kShortest || prompt.output_len < kShortest) continue;
    if (prompt.num_tokens > kLongestPrompt || prompt.num_tokens + prompt.output_len > kLongest)
      continue;
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

std::vector<BenchPrompt> custom_prompts(const DatasetOptions& options, const Tokenizer& tokenizer) {
  require_path(options);
  std::istringstream file(read_text_file(options.path, "--dataset-path " + options.path));
  std::vector<BenchPrompt> prompts;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string source = options.path + " line " + std::to_string(number);
    const Json json = parse_json(line, source);
    const JsonField field(json, source);
    BenchPrompt prompt{.text = field.get<std::string>("prompt")};
    prompt.num_tokens = std::ssize(tokenizer.encode_prompt(prompt.text));
    prompt.output_len = options.custom_output_len > 0 ? options.custom_output_len
                                                      : field.get<std::int64_t>("output_tokens");
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

}  // namespace

std::vector<BenchPrompt> load_dataset(const DatasetOptions& options, const Tokenizer& tokenizer) {
  if (options.num_prompts < 1)
    throw Error(ErrorKind::kInvalidArgument, "--num-prompts: at least 1");
  if (options.name == "random") return random_prompts(options, tokenizer);
  std::vector<BenchPrompt> all;
  if (options.name == "sharegpt") {
    all = sharegpt_prompts(options, tokenizer);
  } else if (options.name == "custom") {
    all = custom_prompts(options, tokenizer);
  } else {
    throw Error(ErrorKind::kInvalidArgument,
                "--dataset-name " + options.name + ": must be random, sharegpt or custom");
  }
  if (all.empty()) throw Error(ErrorKind::kBadFile, options.path + ": no prompt that can be used");
  Picker picker(options.seed);
  if (!options.disable_shuffle)
    for (std::int64_t i = std::ssize(all) - 1; i > 0; --i)
      std::swap(all[static_cast<std::size_t>(i)],
                all[static_cast<std::size_t>(picker.between(0, i))]);
  std::vector<BenchPrompt> prompts;
  for (std::int64_t i = 0; i < options.num_prompts; ++i)
    prompts.push_back(all[static_cast<std::size_t>(i % std::ssize(all))]);
  return prompts;
}

}  // namespace coppice
