// Reader of GGUF version 3 files (little-endian, not split).
//
// Layout: "GGUF", u32 version, u64 tensor count, u64 key count; the keys (string, type, value); the
// tensor infos (string, u32 dimensions, u64 sizes with the innermost first, u32 type, u64 offset);
// then the data at the next multiple of general.alignment (32 when absent).
// Checked: counts against the bytes that are left, keys and tensors named once, whole blocks, sizes
// without overflow, aligned offsets, tensors that follow each other with padding only.
// Source: ggml documentation of the GGUF format.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/json_field.h"
#include "io/mapped_file.h"
#include "io/tensor_info.h"

namespace coppice {

// Immutable after construction; reads from any number of threads.
class GgufFile {
 public:
  // Throws Error kNotFound, kBadFile or kUnsupported (another version, a tensor type that Coppice
  // does not run) "PATH: cause", naming the key or tensor.
  explicit GgufFile(const std::filesystem::path& path);

  const MappedFile& file() const { return file_; }
  // In the order of the file; shapes are outermost first, the reverse of the file's.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  // One object of flat keys such as "llama.block_count". Strings are kept byte for byte.
  const Json& metadata() const { return metadata_; }
  JsonField fields() const { return JsonField(metadata_, file_.name()); }

  std::vector<TensorInfo> take_tensors() { return std::move(tensors_); }
  MappedFile take_file() { return std::move(file_); }
  Json take_metadata() { return std::move(metadata_); }

 private:
  MappedFile file_;
  std::vector<TensorInfo> tensors_;
  Json metadata_ = Json::object();
};

// The tokenizer keys of a GGUF file.
struct GgufVocabulary {
  std::string model;                      // "gpt2" (byte-level BPE), "llama" (SentencePiece) ...
  std::string pre;                        // pre-tokeniser, e.g. "smollm", "qwen2"; may be empty
  std::vector<std::string> tokens;        // [vocab_size]
  std::vector<float> scores;              // [vocab_size] or empty
  std::vector<std::int32_t> token_types;  // [vocab_size] or empty; 1 normal, 3 control, 4 user
  std::vector<std::string> merges;        // "left right", best first; empty when not BPE
  std::int64_t bos_token_id = -1;         // -1: absent
  std::int64_t eos_token_id = -1;
  std::optional<bool> add_bos_token = {};  // nothing: as the pre-tokeniser has it
  bool add_eos_token = false;
  std::string chat_template;  // empty: none
};

// Throws kBadFile naming the key when an array is missing or lengths disagree.
GgufVocabulary read_gguf_vocabulary(const JsonField& metadata);

}  // namespace coppice
