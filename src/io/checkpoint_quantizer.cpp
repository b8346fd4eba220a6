#include "io/checkpoint_quantizer.h"

#include <atomic>
#include <cmath>
#include <optional>

#include "base/thread_pool.h"
#include "io/json_field.h"
#include "io/model_folder.h"
#include "io/quantization_config.h"
#include "io/quantize_int4.h"
#include "io/safetensors_writer.h"
#include "io/value_check.h"
#include "io/weight_rows.h"

namespace coppice {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWeight = ".weight";

enum class Action { kQuantize, kToBf16, kCopy, kDrop };

// "....mlp.experts.17.up_proj.weight"
bool is_routed_expert_weight(std::string_view name) {
  if (name.find(".mlp.experts.") == std::string_view::npos) return false;
  for (const char* projection : {"gate_proj.weight", "up_proj.weight", "down_proj.weight"})
    if (name.ends_with(projection)) return true;
  return false;
}

Action action_for(const TensorInfo& info) {
  if (info.name.ends_with(".weight_scale_inv")) return Action::kDrop;
  if (is_routed_expert_weight(info.name)) return Action::kQuantize;
  return info.type == StorageType::kF8E4M3 ? Action::kToBf16 : Action::kCopy;
}

// The tensors written for one of the source, in the order in which their bytes come.
std::vector<TensorSpec> outputs_of(const TensorInfo& info, Action action,
                                   const Checkpoint& checkpoint) {
  switch (action) {
    case Action::kDrop:
      return {};
    case Action::kCopy:
      return {{info.name, info.type, info.shape}};
    case Action::kToBf16:
      return {{info.name, StorageType::kBF16, info.shape}};
    case Action::kQuantize:
      break;
  }
  if (info.shape.size() != 2 || info.shape[1] % kInt4GroupSize != 0)
    checkpoint.fail(info, "is " + info.describe() + ": INT4 needs rows of a multiple of 32",
                    ErrorKind::kUnsupported);
  const std::string prefix = info.name.substr(0, info.name.size() - kWeight.size());
  const std::int64_t rows = info.shape[0], cols = info.shape[1];
  return {{prefix + ".weight_packed", StorageType::kI32, {rows, cols / kInt4PerWord}},
          {prefix + ".weight_shape", StorageType::kI32, {2}},
          {prefix + ".weight_scale", StorageType::kBF16, {rows, cols / kInt4GroupSize}}};
}

struct Item {
  const TensorInfo* source;
  Action action;
  std::vector<TensorSpec> outputs;
};

struct Shard {
  std::vector<Item> items;
  std::uint64_t num_bytes = 0;
};

std::vector<Shard> plan_shards(const Checkpoint& checkpoint, std::uint64_t shard_bytes,
                               QuantizeResult& result) {
  std::vector<Shard> shards(1);
  for (const TensorInfo& info : checkpoint.tensors()) {
    const Action action = action_for(info);
    Item item{&info, action, outputs_of(info, action, checkpoint)};
    std::uint64_t bytes = 0;
    for (const TensorSpec& spec : item.outputs) bytes += *storage_bytes(spec.type, spec.shape);
    if (shards.back().num_bytes > 0 && shards.back().num_bytes + bytes > shard_bytes)
      shards.emplace_back();
    shards.back().num_bytes += bytes;
    shards.back().items.push_back(std::move(item));
    if (action == Action::kQuantize) ++result.quantized_tensors;
    if (action == Action::kCopy || action == Action::kToBf16) ++result.other_tensors;
    result.source_bytes += info.num_bytes;
    result.written_bytes += bytes;
  }
  result.shards = shards.size();
  return shards;
}

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

// Converts the tensors of one checkpoint, one at a time, rows in parallel.
class Converter {
 public:
  Converter(const Checkpoint& checkpoint, int num_threads)
      : checkpoint_(checkpoint), pool_(num_threads) {}

  void convert(const Item& item, SafetensorsWriter& writer) {
    const TensorInfo& info = *item.source;
    if (item.action == Action::kCopy) writer.write(checkpoint_.bytes(info));
    if (item.action == Action::kToBf16) to_bf16_tensor(info, writer);
    if (item.action == Action::kQuantize) quantize(info, writer);
    checkpoint_.dont_need(info);
  }

  double relative_error() const {
    return squared_sum_ > 0 ? std::sqrt(squared_error_ / squared_sum_) : 0;
  }

 private:
  // body(row, values [cols]) for every row. A value that is not finite becomes an Error.
  template <typename Body>
  void for_each_row(const TensorInfo& info, const WeightRows& weight, const Body& body) {
    std::atomic<bool> finite{true};
    pool_.parallel_for(weight.num_rows(), 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> values(static_cast<std::size_t>(weight.num_cols()));
      for (std::int64_t row = begin; row < end; ++row) {
        weight.read(row, values);
        for (const float value : values)
          if (!std::isfinite(value)) finite = false;
        if (finite) body(row, values);
      }
    });
    if (finite) return;
    check_values(checkpoint_, info);  // names the element, unless the scale is at fault
    checkpoint_.fail(info, "has values that are not finite once scaled");
  }

  void to_bf16_tensor(const TensorInfo& info, SafetensorsWriter& writer) {
    const WeightRows weight(checkpoint_, info);
    std::vector<bf16> out(static_cast<std::size_t>(info.num_elements()));
    for_each_row(info, weight, [&](std::int64_t row, const std::vector<float>& values) {
      bf16* target = out.data() + row * weight.num_cols();
      for (const float value : values) *target++ = to_bf16(value);
    });
    writer.write(bytes_of(out));
  }

  void quantize(const TensorInfo& info, SafetensorsWriter& writer) {
    const WeightRows weight(checkpoint_, info);
    const std::int64_t rows = weight.num_rows(), cols = weight.num_cols();
    const std::int64_t row_words = cols / kInt4PerWord, row_scales = cols / kInt4GroupSize;
    std::vector<std::int32_t> words(static_cast<std::size_t>(rows * row_words));
    std::vector<bf16> scales(static_cast<std::size_t>(rows * row_scales));
    std::vector<double> errors(static_cast<std::size_t>(rows)), squares(errors);
    for_each_row(info, weight, [&](std::int64_t row, const std::vector<float>& values) {
      const auto i = static_cast<std::size_t>(row);
      errors[i] = quantize_int4_row(values, words.data() + row * row_words,
                                    scales.data() + row * row_scales);
      for (const float value : values) squares[i] += static_cast<double>(value) * value;
    });
    // Summed in row order: the report does not depend on the number of threads.
    for (const double error : errors) squared_error_ += error;
    for (const double square : squares) squared_sum_ += square;
    writer.write(bytes_of(words));
    writer.write(bytes_of(std::vector<std::int32_t>{static_cast<std::int32_t>(rows),
                                                    static_cast<std::int32_t>(cols)}));
    writer.write(bytes_of(scales));
  }

  const Checkpoint& checkpoint_;
  ThreadPool pool_;
  double squared_error_ = 0;
  double squared_sum_ = 0;
};

Json int4_quantization_config() {
  Json weights = Json::object({{"num_bits", 4},
                               {"type", "int"},
                               {"symmetric", true},
                               {"strategy", "group"},
                               {"group_size", kInt4GroupSize},
                               {"dynamic", false},
                               {"observer", "minmax"},
                               {"observer_kwargs", Json::object()},
                               {"actorder", nullptr},
                               {"block_structure", nullptr}});
  Json group = Json::object({{"targets", Json::array({"Linear"})},
                             {"input_activations", nullptr},
                             {"output_activations", nullptr},
                             {"weights", std::move(weights)}});
  return Json::object(
      {{"quant_method", "compressed-tensors"},
       {"format", "pack-quantized"},
       {"quantization_status", "compressed"},
       {"kv_cache_scheme", nullptr},
       {"global_compression_ratio", nullptr},
       {"config_groups", Json::object({{"group_0", std::move(group)}})},
       {"ignore", Json::array({"lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
                               "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"})}});
}

void write_config(const fs::path& source, const fs::path& destination) {
  Json config = read_json_file(source / "config.json");
  config.erase("compression_config");
  config["quantization_config"] = int4_quantization_config();
  if (Json* text_config = config.find("text_config"))
    (*text_config)["quantization_config"] = int4_quantization_config();
  write_text_file(destination / "config.json", write_json(config, {.indent = 2}) + "\n");
}

void check_source(const Checkpoint& checkpoint) {
  const std::string name = printable(checkpoint.path().string());
  if (!fs::is_directory(checkpoint.path()))
    throw Error(ErrorKind::kUnsupported,
                name + ": only model folders in safetensors are converted");
  if (checkpoint.gguf_metadata() != nullptr)
    throw Error(ErrorKind::kUnsupported, name + ": a GGUF file; give the BF16 or FP8 safetensors");
  const QuantizationConfig config = read_quantization_config(checkpoint.directory());
  if (config.format == QuantizationFormat::kPackQuantizedInt4)
    throw Error(ErrorKind::kUnsupported, name + ": already " + name_of(config.format));
}

}  // namespace

QuantizeResult quantize_checkpoint(const fs::path& source, const fs::path& destination,
                                   const QuantizeOptions& options) {
  const Checkpoint checkpoint(source);
  check_source(checkpoint);
  QuantizeResult result;
  const std::vector<Shard> shards = plan_shards(checkpoint, options.shard_bytes, result);
  if (result.quantized_tensors == 0)
    throw Error(ErrorKind::kInvalidArgument,
                printable(source.string()) + ": no routed experts (mlp.experts.N.*_proj.weight)");
  prepare_destination(destination);
  Converter converter(checkpoint, options.num_threads);
  Json::Object weight_map;
  std::uint64_t done = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    std::vector<TensorSpec> specs;
    for (const Item& item : shards[i].items)
      specs.insert(specs.end(), item.outputs.begin(), item.outputs.end());
    const std::string name = shard_name(i, shards.size());
    SafetensorsWriter writer(destination / name, specs, {{"format", "pt"}});
    for (const Item& item : shards[i].items) {
      converter.convert(item, writer);
      done += item.source->num_bytes;
      if (options.progress)
        options.progress(static_cast<std::int64_t>(done),
                         static_cast<std::int64_t>(result.source_bytes));
    }
    writer.finish();
    for (const TensorSpec& spec : specs) weight_map.emplace_back(spec.name, name);
  }
  result.relative_error = converter.relative_error();
  copy_small_files(source, destination);
  write_config(source, destination);
  Json index = Json::object({{"metadata", Json::object({{"total_size", result.written_bytes}})},
                             {"weight_map", std::move(weight_map)}});
  write_text_file(destination / "model.safetensors.index.json",
                  write_json(index, {.indent = 1}) + "\n");
  return result;
}

}  // namespace coppice
