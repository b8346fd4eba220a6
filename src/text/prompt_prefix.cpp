#include "text/prompt_prefix.h"

#include <algorithm>

#include "base/error.h"

namespace coppice {
namespace {

[[noreturn]] void refuse_suffix(const std::string& where) {
  throw Error(ErrorKind::kUnsupported, where + ": tokens behind a prompt are not supported");
}

// "single" of a TemplateProcessing: special tokens and the text, which is called A.
std::vector<std::int32_t> read_template(const JsonField& processor) {
  std::vector<std::int32_t> prefix;
  bool behind_text = false;
  for (const JsonField& piece : processor.at("single").elements()) {
    if (piece.has("Sequence")) {
      behind_text = true;
      continue;
    }
    if (behind_text) refuse_suffix(piece.source() + ": field '" + piece.path() + "'");
    const auto name = piece.at("SpecialToken").get<std::string>("id");
    const auto ids = processor.at("special_tokens").at(name).get<std::vector<std::int32_t>>("ids");
    prefix.insert(prefix.end(), ids.begin(), ids.end());
  }
  return prefix;
}

std::vector<std::int32_t> read_processor(const JsonField& processor) {
  const auto type = processor.get<std::string>("type");
  if (type == "ByteLevel") return {};  // offsets only
  if (type == "TemplateProcessing") return read_template(processor);
  if (type != "Sequence")
    throw Error(ErrorKind::kUnsupported, processor.source() + ": field '" + processor.path() +
                                             ".type': '" + type + "' is not supported");
  std::vector<std::int32_t> prefix;
  for (const JsonField& step : processor.at("processors").elements()) {
    const std::vector<std::int32_t> ids = read_processor(step);
    prefix.insert(prefix.begin(), ids.begin(), ids.end());
  }
  return prefix;
}

// Classes that build their post-processor from add_bos_token, whatever tokenizer.json holds.
bool decides_by_flag(const JsonField& config) {
  const auto name = config.get<std::string>("tokenizer_class", "");
  return (name == "LlamaTokenizer" || name == "LlamaTokenizerFast") && config.has("add_bos_token");
}

std::int32_t bos_of(const JsonField& config, const std::vector<AddedToken>& added) {
  const JsonField field = config.at("bos_token");
  const JsonField content = field.value().is_object() ? field.at("content") : field;
  const auto text = content.as<std::string>();
  const auto found = std::find_if(added.begin(), added.end(),
                                  [&](const AddedToken& token) { return token.text == text; });
  if (found == added.end()) content.fail("is no added token of tokenizer.json");
  return found->id;
}

}  // namespace

std::vector<std::int32_t> read_prompt_prefix(const JsonField& root,
                                             const std::filesystem::path& config,
                                             const std::vector<AddedToken>& added) {
  if (std::filesystem::exists(config)) {
    const Json document = read_json_file(config);
    const JsonField fields(document, config.string());
    if (decides_by_flag(fields)) {
      if (fields.get<bool>("add_eos_token", false))
        refuse_suffix(config.string() + ": field 'add_eos_token'");
      if (!fields.get<bool>("add_bos_token")) return {};
      return {bos_of(fields, added)};
    }
  }
  const auto processor = root.find("post_processor");
  return processor ? read_processor(*processor) : std::vector<std::int32_t>();
}

std::vector<std::int32_t> read_prompt_prefix(const GgufVocabulary& vocabulary, bool otherwise,
                                             const std::string& source) {
  if (vocabulary.add_eos_token) refuse_suffix(source + ": tokenizer.ggml.add_eos_token");
  if (!vocabulary.add_bos_token.value_or(otherwise)) return {};
  const std::int64_t id = vocabulary.bos_token_id;
  if (id < 0 || id >= std::ssize(vocabulary.tokens))
    throw Error(ErrorKind::kBadFile, source + ": tokenizer.ggml.bos_token_id is " +
                                         std::to_string(id) + ": a prompt begins with it");
  return {static_cast<std::int32_t>(id)};
}

}  // namespace coppice
