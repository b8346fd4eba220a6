// Readers of the three vocabulary formats. tokenizer.json is in tokenizer_json.cpp.
#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "io/json_field.h"
#include "io/mapped_file.h"
#include "text/byte_alphabet.h"
#include "text/prompt_prefix.h"
#include "text/tokenizer.h"

namespace coppice {
namespace {

constexpr std::int32_t kSpecialSlots = 256;  // behind the base ranks of a Kimi vocabulary
constexpr std::int32_t kMaxVocabulary = 1 << 22;

[[noreturn]] void bad_line(const std::string& path, std::size_t line, const std::string& cause) {
  throw Error(ErrorKind::kBadFile, path + ": line " + std::to_string(line) + ": " + cause);
}

int base64_value(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  return c == '/' ? 63 : -1;
}

// Nothing when `text` is no padded base64.
std::optional<std::string> decode_base64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  std::string out;
  unsigned bits = 0;
  for (std::size_t i = 0; i < text.size() - padding; ++i) {
    const int value = base64_value(text[i]);
    if (value < 0) return std::nullopt;
    bits = bits << 6 | static_cast<unsigned>(value);
    if (i % 4 != 0) out.push_back(static_cast<char>(bits >> (6 - i % 4 * 2) & 0xff));
  }
  return out;
}

// `base64 rank` lines, ranks 0, 1, 2 ... in any order without gaps.
std::vector<std::string> read_ranks(const std::string& path) {
  const MappedFile file{std::filesystem::path(path)};
  if (const std::string_view other = looks_like(file.text()); !other.empty())
    throw Error(ErrorKind::kBadFile, path + ": not a vocabulary but " + std::string(other));
  std::vector<std::string> tokens;
  std::vector<bool> seen;
  std::size_t line_number = 0;
  for (std::string_view rest = file.text(); !rest.empty();) {
    ++line_number;
    const std::size_t newline = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, newline);
    rest.remove_prefix(std::min(newline + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const std::size_t space = line.find(' ');
    if (space == line.npos) bad_line(path, line_number, "expected `base64 rank`");
    std::int32_t rank = -1;
    const char* end = line.data() + line.size();
    const auto parsed = std::from_chars(line.data() + space + 1, end, rank);
    if (parsed.ec != std::errc{} || parsed.ptr != end || rank < 0 || rank >= kMaxVocabulary) {
      bad_line(path, line_number, "rank is not a number below " + std::to_string(kMaxVocabulary));
    }
    std::optional<std::string> token = decode_base64(line.substr(0, space));
    if (!token) bad_line(path, line_number, "token is not base64");
    const auto index = static_cast<std::size_t>(rank);
    if (index >= tokens.size()) tokens.resize(index + 1), seen.resize(index + 1);
    if (seen[index]) bad_line(path, line_number, "rank " + std::to_string(rank) + " occurs twice");
    seen[index] = true;
    tokens[index] = std::move(*token);
  }
  const auto gap = std::find(seen.begin(), seen.end(), false);
  if (tokens.empty() || gap != seen.end()) {
    throw Error(ErrorKind::kBadFile,
                path + ": rank " + std::to_string(gap - seen.begin()) + " is missing");
  }
  return tokens;
}

// The slots of a Kimi vocabulary: named by added_tokens_decoder, else <|reserved_token_ID|>.
std::vector<AddedToken> read_special_slots(const std::string& config_path, std::int32_t base) {
  std::vector<AddedToken> slots;
  for (std::int32_t id = base; id < base + kSpecialSlots; ++id) {
    slots.push_back({id, "<|reserved_token_" + std::to_string(id) + "|>", true});
  }
  const Json config = read_json_file(config_path);
  const JsonField root(config, config_path);
  for (const auto& [key, entry] : root.at("added_tokens_decoder").members()) {
    std::int32_t id = -1;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
    if (parsed.ec != std::errc{} || parsed.ptr != key.data() + key.size() || id < base ||
        id >= base + kSpecialSlots) {
      entry.fail("id is outside of the special slots " + std::to_string(base) + ".." +
                 std::to_string(base + kSpecialSlots - 1));
    }
    AddedToken& slot = slots[static_cast<std::size_t>(id - base)];
    slot.text = entry.get<std::string>("content");
    slot.special = entry.get<bool>("special", true);
    if (slot.text.empty()) entry.fail("content is empty");
  }
  return slots;
}

struct GgufPre {
  std::string_view name;
  PreTokenizer pre_tokenizer;
  bool normalize_nfc;
  bool whole_piece_first;
  bool adds_bos;  // where the file does not say
};

// tokenizer.ggml.pre names of the patterns we have.
constexpr std::array kGgufPres = {
    GgufPre{"kimi-k2", PreTokenizer::kKimi, false, true, false},
    GgufPre{"llama-bpe", PreTokenizer::kLlama3, false, true, true},
    GgufPre{"llama3", PreTokenizer::kLlama3, false, true, true},
    GgufPre{"qwen2", PreTokenizer::kQwen2, true, false, false},
    GgufPre{"smollm", PreTokenizer::kSmolLm, false, false, false},
    GgufPre{"gpt-2", PreTokenizer::kGpt2, false, false, false},
    GgufPre{"default", PreTokenizer::kGpt2, false, false, false},
};

const GgufPre& find_gguf_pre(const GgufVocabulary& vocabulary, const std::string& source) {
  if (vocabulary.model != "gpt2") {
    throw Error(ErrorKind::kUnsupported, source + ": tokenizer.ggml.model '" + vocabulary.model +
                                             "': only byte-level BPE ('gpt2') is supported");
  }
  const auto found = std::find_if(kGgufPres.begin(), kGgufPres.end(),
                                  [&](const GgufPre& pre) { return pre.name == vocabulary.pre; });
  if (found == kGgufPres.end()) {
    throw Error(ErrorKind::kUnsupported, source + ": tokenizer.ggml.pre '" + vocabulary.pre +
                                             "': pre-tokenisation pattern not supported");
  }
  return *found;
}

}  // namespace

Tokenizer Tokenizer::from_tiktoken(const std::string& model_path, const std::string& config_path) {
  const std::vector<std::string> tokens = read_ranks(model_path);
  const auto base = static_cast<std::int32_t>(tokens.size());
  std::vector<AddedToken> slots = read_special_slots(config_path, base);
  TokenTable table;
  for (const std::string& token : tokens) table.add(token, true);
  for (const AddedToken& slot : slots) table.add(slot.text, false);
  table.build_index();
  return Tokenizer(Parts{Bpe(std::move(table)), PreTokenizer::kKimi, false, true, slots});
}

Tokenizer Tokenizer::from_gguf(const GgufVocabulary& vocabulary, const std::string& source) {
  const GgufPre& pre = find_gguf_pre(vocabulary, source);
  const auto fail = [&](const std::string& cause) {
    throw Error(ErrorKind::kBadFile, source + ": " + cause);
  };
  const std::size_t size = vocabulary.tokens.size();
  if (size == 0 || size > kMaxVocabulary) fail("tokenizer.ggml.tokens: bad number of tokens");
  if (!vocabulary.token_types.empty() && vocabulary.token_types.size() != size) {
    fail("tokenizer.ggml.token_type: " + std::to_string(vocabulary.token_types.size()) +
         " entries for " + std::to_string(size) + " tokens");
  }
  constexpr std::int32_t kNormal = 1, kControl = 3, kUserDefined = 4;
  TokenTable table;
  std::vector<AddedToken> added;
  for (std::size_t i = 0; i < size; ++i) {
    const std::int32_t type = vocabulary.token_types.empty() ? kNormal : vocabulary.token_types[i];
    const std::string& text = vocabulary.tokens[i];
    const std::optional<std::string> bytes = bytes_of_alphabet(text);
    table.add(type == kNormal && bytes ? *bytes : text, type == kNormal);
    if ((type == kControl || type == kUserDefined) && !text.empty()) {
      added.push_back({static_cast<std::int32_t>(i), text, type == kControl});
    }
  }
  table.build_index();
  std::vector<Merge> merges;
  merges.reserve(vocabulary.merges.size());
  for (const std::string& line : vocabulary.merges) {
    const std::optional<Merge> merge = merge_of_line(line, table);
    if (!merge) fail("tokenizer.ggml.merges: '" + printable(line) + "' is no pair of tokens");
    merges.push_back(*merge);
  }
  return Tokenizer(Parts{Bpe(std::move(table), merges, pre.whole_piece_first), pre.pre_tokenizer,
                         pre.normalize_nfc, pre.pre_tokenizer == PreTokenizer::kKimi,
                         std::move(added), read_prompt_prefix(vocabulary, pre.adds_bos, source)});
}

Tokenizer Tokenizer::from_folder(const std::string& folder) {
  const std::filesystem::path path(folder);
  if (std::filesystem::exists(path / "tiktoken.model")) {
    return from_tiktoken((path / "tiktoken.model").string(),
                         (path / "tokenizer_config.json").string());
  }
  if (std::filesystem::exists(path / "tokenizer.json")) {
    return from_tokenizer_json((path / "tokenizer.json").string());
  }
  throw Error(ErrorKind::kNotFound, folder + ": neither tiktoken.model nor tokenizer.json");
}

}  // namespace coppice
