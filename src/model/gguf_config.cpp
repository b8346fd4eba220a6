#include "model/gguf_config.h"

#include <array>
#include <utility>

#include "io/checkpoint.h"
#include "model/config_fields.h"

namespace coppice {
namespace {

constexpr std::array<std::pair<const char*, const char*>, 14> kNames{{
    {"model.layers.", "blk."},
    {"input_layernorm", "attn_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},
}};

double read_norm_eps(const JsonField& metadata, const std::string& key) {
  const JsonField field = metadata.at(key);
  const double eps = field.as<double>();
  if (!(eps > 0) || eps > 0.1) field.fail("must be between 0 and 0.1");
  return eps;
}

RopeConfig read_gguf_rope(const JsonField& metadata, const std::string& arch,
                          const Checkpoint& checkpoint, std::int64_t head_dim) {
  RopeConfig rope;
  const std::string prefix = arch + ".rope.";
  rope.theta = metadata.get<double>(prefix + "freq_base", 10000);
  if (!(rope.theta > 1)) metadata.at(prefix + "freq_base").fail("must be greater than 1");
  require_equal(metadata, (prefix + "dimension_count").c_str(), head_dim);
  // Converters permute the rows of q and k of Llama so that pairs are neighbours.
  rope.interleaved = arch == "llama";
  const std::string type = metadata.get<std::string>(prefix + "scaling.type", "none");
  if (type == "yarn") {
    rope.type = RopeType::kYarn;
    rope.factor = metadata.get<double>(prefix + "scaling.factor");
    rope.original_max_position_embeddings =
        read_size(metadata, (prefix + "scaling.original_context_length").c_str());
    if (!(rope.factor >= 1)) metadata.at(prefix + "scaling.factor").fail("must be at least 1");
  } else if (type != "none") {
    fail_unsupported(metadata.at(prefix + "scaling.type"), "only none and yarn are supported");
  }
  if (checkpoint.contains("rope_freqs.weight")) {
    const float* divisors =
        checkpoint.tensor("rope_freqs.weight", DType::kF32, {head_dim / 2}).data<float>();
    rope.frequency_divisors.assign(divisors, divisors + head_dim / 2);
    for (const float divisor : rope.frequency_divisors)
      if (!(divisor > 0))
        checkpoint.fail(checkpoint.at("rope_freqs.weight"), "has values that are not positive");
  }
  return rope;
}

void read_gguf_token_ids(const JsonField& metadata, ModelConfig& model) {
  const std::string prefix = "tokenizer.ggml.";
  model.bos_token_id = metadata.get<std::int64_t>(prefix + "bos_token_id", -1);
  for (const char* key : {"eos_token_id", "eot_token_id"}) {
    const auto field = metadata.find(prefix + key);
    if (!field) continue;
    const auto id = field->as<std::int64_t>();
    if (id < 0 || id >= model.vocab_size) field->fail("is outside the vocabulary");
    model.eos_token_ids.push_back(id);
  }
}

std::int64_t read_vocab_size(const JsonField& metadata, const Checkpoint& checkpoint,
                             const std::string& arch) {
  if (metadata.has(arch + ".vocab_size"))
    return read_size(metadata, (arch + ".vocab_size").c_str());
  const TensorInfo& info = checkpoint.at("token_embd.weight");
  if (info.shape.size() != 2 || info.shape[0] < 1) checkpoint.fail(info, "is no matrix");
  return info.shape[0];
}

}  // namespace

std::optional<std::filesystem::path> find_gguf(const std::filesystem::path& path) {
  if (path.extension() == ".gguf") return path;
  std::error_code error;
  std::optional<std::filesystem::path> found;
  for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::filesystem::path& file = entry->path();
    if (file.extension() == ".safetensors") return std::nullopt;
    if (file.extension() != ".gguf") continue;
    if (found) return std::nullopt;
    found = file;
  }
  return found;
}

ModelConfig load_gguf_config(const std::filesystem::path& path) {
  const Checkpoint checkpoint(path);
  const JsonField metadata(*checkpoint.gguf_metadata(), printable(path.string()));
  const auto arch = metadata.get<std::string>("general.architecture");
  if (arch != "llama" && arch != "qwen3")
    fail_unsupported(metadata.at("general.architecture"),
                     "'" + printable(arch) + "' is not supported in GGUF (llama and qwen3 are)");
  const auto size = [&](const char* key, std::int64_t most) {
    return read_size(metadata, (arch + "." + key).c_str(), most);
  };
  constexpr std::int64_t kMaxWidth = 1 << 24;
  ModelConfig model;
  model.architecture = Architecture::kLlama;
  model.qk_norm = arch == "qwen3";
  model.hidden_size = size("embedding_length", kMaxWidth);
  model.num_hidden_layers = size("block_count", kMaxLayers);
  model.intermediate_size = size("feed_forward_length", kMaxWidth);
  model.num_attention_heads = size("attention.head_count", kMaxHeads);
  model.num_key_value_heads = size("attention.head_count_kv", kMaxHeads);
  model.max_position_embeddings = size("context_length", kMaxWidth);
  model.vocab_size = read_vocab_size(metadata, checkpoint, arch);
  model.rms_norm_eps = read_norm_eps(metadata, arch + ".attention.layer_norm_rms_epsilon");
  model.head_dim = read_size_or(metadata, (arch + ".attention.key_length").c_str(),
                                model.hidden_size / model.num_attention_heads);
  require_equal(metadata, (arch + ".attention.value_length").c_str(), model.head_dim);
  require_equal(metadata, (arch + ".expert_count").c_str(), std::int64_t{0});
  if (model.head_dim % 2 != 0 || model.num_attention_heads % model.num_key_value_heads != 0)
    metadata.at(arch + ".attention.head_count").fail("does not fit the other head counts");
  model.tie_word_embeddings = !checkpoint.contains("output.weight");
  model.rope = read_gguf_rope(metadata, arch, checkpoint, model.head_dim);
  read_gguf_token_ids(metadata, model);
  return model;
}

std::string gguf_name(const std::string& name) {
  if (name.starts_with("lm_head.")) return "output" + name.substr(7);
  std::string result = name;
  for (const auto& [published, gguf] : kNames)
    if (const std::size_t at = result.find(published); at != std::string::npos)
      result.replace(at, std::string_view(published).size(), gguf);
  return result;
}

}  // namespace coppice
