#include "io/inspect_report.h"

#include <algorithm>
#include <cstdio>
#include <optional>

namespace coppice {
namespace {

bool has_part(std::string_view name, std::initializer_list<std::string_view> needles) {
  return std::any_of(needles.begin(), needles.end(),
                     [&](std::string_view needle) { return name.find(needle) != name.npos; });
}

std::int64_t parameters_of(const TensorInfo& info) {
  if (info.name.ends_with(".weight_packed")) return info.num_elements() * 8;
  if (has_part(info.name, {".weight_scale", ".weight_shape", ".input_scale"})) return 0;
  return info.num_elements();
}

void add(PartSize& size, const TensorInfo& info) {
  ++size.tensors;
  size.parameters += parameters_of(info);
  size.bytes += info.num_bytes;
}

// Scalars of config.json (or its text_config) that say how large the network is.
constexpr std::pair<const char*, const char*> kFacts[] = {
    {"num_hidden_layers", "layers"},
    {"hidden_size", "hidden size"},
    {"num_attention_heads", "attention heads"},
    {"num_key_value_heads", "key/value heads"},
    {"kv_lora_rank", "kv_lora_rank"},
    {"first_k_dense_replace", "dense layers first"},
    {"n_routed_experts", "routed experts"},
    {"num_experts_per_tok", "experts per token"},
    {"n_shared_experts", "shared experts"},
    {"vocab_size", "vocabulary"},
    {"max_position_embeddings", "context"},
    {"block_size", "draft block size"},
};

void read_facts(const JsonField& config, InspectReport& report) {
  const auto nested = config.find("text_config");
  const JsonField& network = nested ? *nested : config;
  if (config.has("architectures"))
    report.architecture = config.get<std::vector<std::string>>("architectures").empty()
                              ? ""
                              : config.get<std::vector<std::string>>("architectures")[0];
  const std::string model_type = network.get("model_type", "");
  if (!model_type.empty()) report.architecture += " (" + model_type + ")";
  report.architecture = printable(report.architecture);
  for (const auto& [key, label] : kFacts)
    if (const auto field = network.find(key)) {
      const auto count = field->as<std::int64_t>();
      if (count < 0) field->fail(std::to_string(count) + " is negative");
      report.facts.emplace_back(label, std::to_string(count));
    }
}

void read_gguf_facts(const JsonField& metadata, InspectReport& report) {
  const std::string architecture = metadata.get("general.architecture", "?");
  report.architecture = "GGUF " + printable(architecture);
  for (const char* key :
       {"block_count", "embedding_length", "attention.head_count", "attention.head_count_kv",
        "expert_count", "vocab_size", "context_length"})
    if (const auto field = metadata.find(architecture + "." + key))
      if (field->value().is_integer()) report.facts.emplace_back(key, write_json(field->value()));
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

std::string padded_left(const std::string& text, std::size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

std::string size_row(const std::string& label, const PartSize& size) {
  return "  " + padded(label, 16) + padded_left(std::to_string(size.tensors), 10) +
         padded_left(std::to_string(size.parameters), 18) +
         padded_left(format_bytes(size.bytes), 14) + "\n";
}

Json size_as_json(const PartSize& size) {
  return Json::object(
      {{"tensors", size.tensors}, {"parameters", size.parameters}, {"bytes", size.bytes}});
}

}  // namespace

const char* name_of(ModelPart part) {
  constexpr const char* kNames[kNumModelParts] = {
      "embedding", "attention", "router",  "routed experts", "shared experts",
      "dense MLP", "norms",     "lm_head", "vision",         "other"};
  return kNames[static_cast<std::size_t>(part)];
}

ModelPart part_of(std::string_view name) {
  if (has_part(name, {"vision_tower.", "mm_projector.", "visual."})) return ModelPart::kVision;
  if (has_part(name, {"norm"})) return ModelPart::kNorms;
  if (has_part(name, {"shared_expert", "_shexp"})) return ModelPart::kSharedExperts;
  if (has_part(name, {".experts.", "_exps."})) return ModelPart::kRoutedExperts;
  if (has_part(name, {".mlp.gate.", "ffn_gate_inp", "exp_probs_b"})) return ModelPart::kRouter;
  if (has_part(name, {"embed_tokens", "token_embd"})) return ModelPart::kEmbedding;
  if (has_part(name, {"lm_head"}) || name.starts_with("output.")) return ModelPart::kLmHead;
  if (has_part(name, {"self_attn.", ".attn_"})) return ModelPart::kAttention;
  if (has_part(name, {".mlp.", ".ffn_"})) return ModelPart::kDenseMlp;
  return ModelPart::kOther;
}

InspectReport inspect_checkpoint(const std::filesystem::path& path,
                                 const CheckpointOptions& open_options,
                                 const FormatCheckOptions& check_options) {
  InspectReport report;
  report.path = printable(path.string());
  report.parts.resize(kNumModelParts);
  const Checkpoint checkpoint(path, open_options);
  const std::filesystem::path config_path = checkpoint.directory() / "config.json";
  // A folder is a model and needs its config; a single file may be looked at alone.
  std::optional<Json> document;
  if (checkpoint.gguf_metadata() == nullptr &&
      (std::filesystem::is_directory(path) || std::filesystem::exists(config_path)))
    document = read_json_file(config_path);
  std::optional<JsonField> config;
  QuantizationConfig quantization;
  if (document) {
    config.emplace(*document, printable(config_path.string()));
    quantization = read_quantization_config(checkpoint.directory());
    read_facts(*config, report);
    report.quantization = name_of(quantization.format);
  }
  if (const Json* metadata = checkpoint.gguf_metadata())
    read_gguf_facts(JsonField(*metadata, report.path), report);
  report.files = checkpoint.files().size();
  report.unlisted_tensors = checkpoint.unlisted_tensors();
  report.tensors = checkpoint.tensors();
  for (const TensorInfo& info : report.tensors) {
    add(report.total, info);
    add(report.parts[static_cast<std::size_t>(part_of(info.name))], info);
    add(report.by_type[name_of(info.type)], info);
  }
  report.faults =
      check_format(checkpoint, config ? &*config : nullptr, quantization, check_options);
  return report;
}

std::string format_report(const InspectReport& report, bool list_tensors) {
  std::string out = report.path + "\n";
  const auto line = [&](const std::string& label, const std::string& value) {
    if (!value.empty()) out += "  " + padded(label, 24) + value + "\n";
  };
  line("architecture", report.architecture);
  for (const auto& [label, value] : report.facts) line(label, value);
  line("weights", report.quantization);
  line("files", std::to_string(report.files));
  if (report.unlisted_tensors > 0)
    line("not in the index", std::to_string(report.unlisted_tensors) + " tensors, left out");
  out += "\n  " + padded("part", 16) + padded_left("tensors", 10) + padded_left("parameters", 18) +
         padded_left("size", 14) + "\n";
  for (std::size_t part = 0; part < report.parts.size(); ++part)
    if (report.parts[part].tensors > 0)
      out += size_row(name_of(static_cast<ModelPart>(part)), report.parts[part]);
  out += size_row("total", report.total) + "\n";
  for (const auto& [type, size] : report.by_type) out += size_row(type, size);
  if (list_tensors) {
    out += "\n";
    for (const TensorInfo& info : report.tensors)
      out += printable(info.name) + "  " + info.describe() + "  " + format_bytes(info.num_bytes) +
             "\n";
  }
  out += "\n";
  for (const FormatFault& fault : report.faults) out += "fault: " + fault.message + "\n";
  if (report.faults.empty()) out += "no format fault found\n";
  return out;
}

Json report_as_json(const InspectReport& report, bool list_tensors) {
  Json facts = Json::object(), parts = Json::object(), types = Json::object();
  for (const auto& [label, value] : report.facts) facts[label] = value;
  for (std::size_t part = 0; part < report.parts.size(); ++part)
    parts[name_of(static_cast<ModelPart>(part))] = size_as_json(report.parts[part]);
  for (const auto& [type, size] : report.by_type) types[type] = size_as_json(size);
  Json faults = Json::array();
  for (const FormatFault& fault : report.faults) faults.push_back(fault.message);
  Json out = Json::object({{"path", report.path},
                           {"architecture", report.architecture},
                           {"facts", std::move(facts)},
                           {"weights", report.quantization},
                           {"files", std::uint64_t{report.files}},
                           {"unlisted_tensors", report.unlisted_tensors},
                           {"total", size_as_json(report.total)},
                           {"parts", std::move(parts)},
                           {"types", std::move(types)},
                           {"faults", std::move(faults)}});
  if (!list_tensors) return out;
  Json tensors = Json::array();
  for (const TensorInfo& info : report.tensors) {
    Json shape = Json::array();
    for (const std::int64_t size : info.shape) shape.push_back(size);
    tensors.push_back(Json::object({{"name", info.name},
                                    {"type", name_of(info.type)},
                                    {"shape", std::move(shape)},
                                    {"bytes", info.num_bytes}}));
  }
  out["tensors"] = std::move(tensors);
  return out;
}

std::string format_bytes(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1000 && unit + 1 < std::size(kUnits); ++unit) value /= 1000;
  char text[32];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.2f %s", value, kUnits[unit]);
  return text;
}

}  // namespace coppice
