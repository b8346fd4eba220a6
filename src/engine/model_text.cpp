#include "engine/model_text.h"

#include "io/gguf.h"

namespace coppice {

Tokenizer load_tokenizer(const std::string& path) {
  if (!path.ends_with(".gguf")) return Tokenizer::from_folder(path);
  const GgufFile file(path);
  return Tokenizer::from_gguf(read_gguf_vocabulary(file.fields()), path);
}

}  // namespace coppice
