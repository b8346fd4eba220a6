#include "engine/model_text.h"

#include <filesystem>

#include "base/error.h"
#include "io/gguf.h"

namespace coppice {
namespace {

bool is_gguf(const std::string& path) {
  return path.ends_with(".gguf");
}

void require_folder(const std::string& path) {
  if (std::filesystem::exists(path) && !std::filesystem::is_directory(path))
    throw Error(ErrorKind::kBadFile, path + ": neither a model folder nor a .gguf file");
}

// Text of a token that the vocabulary names, "" where it names none.
std::string token_text(const GgufVocabulary& vocabulary, std::int64_t id) {
  const bool exists = id >= 0 && id < std::ssize(vocabulary.tokens);
  return exists ? vocabulary.tokens[static_cast<std::size_t>(id)] : "";
}

}  // namespace

Tokenizer load_tokenizer(const std::string& path) {
  if (!is_gguf(path)) {
    require_folder(path);
    return Tokenizer::from_folder(path);
  }
  const GgufFile file(path);
  return Tokenizer::from_gguf(read_gguf_vocabulary(file.fields()), path);
}

ChatTemplate load_chat_template(const std::string& path) {
  if (!is_gguf(path)) return ChatTemplate::from_folder(path);
  const GgufFile file(path);
  const GgufVocabulary vocabulary = read_gguf_vocabulary(file.fields());
  if (vocabulary.chat_template.empty())
    throw Error(ErrorKind::kNotFound, path + ": the file has no chat template");
  return ChatTemplate(vocabulary.chat_template, path,
                      {.bos = token_text(vocabulary, vocabulary.bos_token_id),
                       .eos = token_text(vocabulary, vocabulary.eos_token_id),
                       .pad = "",
                       .unk = ""});
}

}  // namespace coppice
