// Hugging Face tokenizer.json: byte-level BPE in the shapes that Qwen, Llama 3, SmolLM2 and GPT-2
// publish. Whatever would change ids and is not known here is refused by name.
#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "io/json_field.h"
#include "text/byte_alphabet.h"
#include "text/prompt_prefix.h"
#include "text/tokenizer.h"

namespace coppice {
namespace {

constexpr std::int32_t kMaxVocabulary = 1 << 22;

struct KnownPattern {
  std::string_view regex;
  PreTokenizer pre_tokenizer;
};

// The Split patterns as published, character for character.
constexpr std::array kPatterns = {
    KnownPattern{
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
        PreTokenizer::kLlama3},
    KnownPattern{
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
        PreTokenizer::kQwen2},
    KnownPattern{
        R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
        PreTokenizer::kKimi},
};

[[noreturn]] void unsupported(const JsonField& field, const std::string& cause) {
  throw Error(ErrorKind::kUnsupported, field.source() + ": field '" + field.path() + "': " + cause);
}

// One step of the pre_tokenizer, in the few forms that occur.
struct Steps {
  std::optional<PreTokenizer> split;
  bool single_digits = false;
  bool byte_level = false;
  bool byte_level_regex = false;
};

void read_split(const JsonField& step, Steps& steps) {
  if (steps.split || steps.single_digits || steps.byte_level) {
    unsupported(step, "Split must come first and once");
  }
  if (step.get<std::string>("behavior") != "Isolated" || step.get<bool>("invert", false)) {
    unsupported(step, "only Split with behavior Isolated and invert false is supported");
  }
  const JsonField pattern = step.at("pattern");
  const auto regex = pattern.get<std::string>("Regex");
  const auto known = std::find_if(kPatterns.begin(), kPatterns.end(),
                                  [&](const KnownPattern& p) { return p.regex == regex; });
  if (known == kPatterns.end()) unsupported(pattern.at("Regex"), "pattern not supported");
  steps.split = known->pre_tokenizer;
}

void read_step(const JsonField& step, Steps& steps) {
  const auto type = step.get<std::string>("type");
  if (type == "Sequence") {
    for (const JsonField& inner : step.at("pretokenizers").elements()) read_step(inner, steps);
  } else if (type == "Split") {
    read_split(step, steps);
  } else if (type == "Digits") {
    if (!step.get<bool>("individual_digits", false) || steps.split || steps.byte_level) {
      unsupported(step, "only a leading Digits with individual_digits true is supported");
    }
    steps.single_digits = true;
  } else if (type == "ByteLevel") {
    if (step.get<bool>("add_prefix_space", true)) {
      unsupported(step.at("add_prefix_space"), "only false is supported");
    }
    if (steps.byte_level) unsupported(step, "ByteLevel occurs twice");
    steps.byte_level = true;
    steps.byte_level_regex = step.get<bool>("use_regex", true);
  } else {
    unsupported(step.at("type"), "'" + type + "' is not supported");
  }
}

PreTokenizer read_pre_tokenizer(const JsonField& root) {
  const JsonField field = root.at("pre_tokenizer");
  Steps steps;
  read_step(field, steps);
  if (!steps.byte_level) unsupported(field, "no ByteLevel step: this is not byte-level BPE");
  if (steps.split && !steps.byte_level_regex) return *steps.split;
  if (!steps.split && steps.byte_level_regex) {
    return steps.single_digits ? PreTokenizer::kSmolLm : PreTokenizer::kGpt2;
  }
  unsupported(field, "this combination of steps is not supported");
}

bool read_nfc(const JsonField& root) {
  const std::optional<JsonField> field = root.find("normalizer");
  if (!field) return false;
  if (field->get<std::string>("type") == "NFC") return true;
  unsupported(field->at("type"), "only NFC is supported");
}

std::vector<AddedToken> read_added_tokens(const JsonField& root) {
  std::vector<AddedToken> added;
  const std::optional<JsonField> list = root.find("added_tokens");
  if (!list) return added;
  for (const JsonField& entry : list->elements()) {
    for (const char* flag : {"lstrip", "rstrip", "single_word"}) {
      if (entry.get<bool>(flag, false)) unsupported(entry.at(flag), "only false is supported");
    }
    AddedToken token{entry.get<std::int32_t>("id"), entry.get<std::string>("content"),
                     entry.get<bool>("special", false)};
    if (token.id < 0 || token.id >= kMaxVocabulary) entry.at("id").fail("out of range");
    if (token.text.empty()) entry.at("content").fail("is empty");
    added.push_back(std::move(token));
  }
  return added;
}

void refuse_model_options(const JsonField& model) {
  if (const auto type = model.get<std::string>("type", "BPE"); type != "BPE") {
    unsupported(model.at("type"), "'" + type + "': only BPE is supported");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.get<std::string>(key, "").empty()) unsupported(model.at(key), "must be empty");
  }
  if (model.get<bool>("byte_fallback", false)) {
    unsupported(model.at("byte_fallback"), "only false is supported");
  }
  if (model.has("dropout") && model.get<double>("dropout") != 0.0) {
    unsupported(model.at("dropout"), "only none is supported");
  }
}

TokenTable read_table(const JsonField& model, const std::vector<AddedToken>& added) {
  struct Entry {
    std::string bytes;
    bool findable = false;
  };
  std::vector<Entry> entries;
  const auto entry_at = [&](std::int32_t id) -> Entry& {
    if (static_cast<std::size_t>(id) >= entries.size()) {
      entries.resize(static_cast<std::size_t>(id) + 1);
    }
    return entries[static_cast<std::size_t>(id)];
  };
  const JsonField vocabulary = model.at("vocab");
  if (!vocabulary.value().is_object()) vocabulary.fail("is not an object");
  for (const auto& [text, id] : vocabulary.value().as_object()) {
    if (id.kind() != Json::Kind::kInt || id.as_int() < 0 || id.as_int() >= kMaxVocabulary) {
      vocabulary.fail("id of '" + text + "' is not in 0.." + std::to_string(kMaxVocabulary - 1));
    }
    const std::optional<std::string> bytes = bytes_of_alphabet(text);
    entry_at(static_cast<std::int32_t>(id.as_int())) = {bytes ? *bytes : text, bytes.has_value()};
  }
  // An added token never comes out of BPE, even where the vocabulary lists it too.
  for (const AddedToken& token : added) entry_at(token.id) = {token.text, false};
  TokenTable table;
  for (const Entry& entry : entries) table.add(entry.bytes, entry.findable);
  table.build_index();
  return table;
}

std::vector<Merge> read_merges(const JsonField& model, const TokenTable& table) {
  std::vector<Merge> merges;
  const JsonField list = model.at("merges");
  if (!list.value().is_array()) list.fail("is not an array");
  merges.reserve(list.value().size());
  for (const Json& rule : list.value().as_array()) {
    std::optional<Merge> merge;
    if (rule.is_string()) {
      merge = merge_of_line(rule.as_string(), table);
    } else if (rule.is_array() && rule.size() == 2 && rule.as_array()[0].is_string() &&
               rule.as_array()[1].is_string()) {
      merge = merge_of_pair(rule.as_array()[0].as_string(), rule.as_array()[1].as_string(), table);
    }
    if (!merge) {
      list.fail("rule " + std::to_string(merges.size()) +
                " is no pair of tokens of the vocabulary");
    }
    merges.push_back(*merge);
  }
  return merges;
}

}  // namespace

Tokenizer Tokenizer::from_tokenizer_json(const std::string& path) {
  const Json document = read_json_file(path);
  const JsonField root(document, path);
  const JsonField model = root.at("model");
  refuse_model_options(model);
  const PreTokenizer pre_tokenizer = read_pre_tokenizer(root);
  const bool nfc = read_nfc(root);
  std::vector<AddedToken> added = read_added_tokens(root);
  TokenTable table = read_table(model, added);
  const std::vector<Merge> merges = read_merges(model, table);
  const bool whole_piece_first = model.get<bool>("ignore_merges", false);
  std::vector<std::int32_t> prefix = read_prompt_prefix(
      root, std::filesystem::path(path).parent_path() / "tokenizer_config.json", added);
  for (const std::int32_t id : prefix)
    if (id < 0 || id >= table.size())
      root.at("post_processor").fail("adds " + std::to_string(id) + ", which is no token");
  return Tokenizer(Parts{Bpe(std::move(table), merges, whole_piece_first), pre_tokenizer, nfc,
                         false, std::move(added), std::move(prefix)});
}

}  // namespace coppice
