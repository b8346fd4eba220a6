#include "model/load_model.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "backend/dequantize.h"
#include "io/json_field.h"
#include "io/mapped_file.h"
#include "model/build_model.h"
#include "model/checkpoint_source.h"
#include "model/gguf_config.h"
#include "model/repacked_source.h"
#include "model/weight_loader.h"

namespace coppice {
namespace {

// Layers after the last one belong to multi-token prediction heads, which are not run.
CheckpointNaming naming_of(const ModelConfig& config) {
  CheckpointNaming naming = safetensors_naming(config.tensor_prefix);
  constexpr std::int64_t kMaxPredictionLayers = 4;
  for (std::int64_t i = 0; i < kMaxPredictionLayers; ++i)
    naming.ignored_prefixes.push_back(config.tensor_prefix + "model.layers." +
                                      std::to_string(config.num_hidden_layers + i) + ".");
  if (config.tie_word_embeddings)
    naming.ignored_prefixes.push_back(config.tensor_prefix + "lm_head.");
  return naming;
}

CheckpointNaming naming_of(const Checkpoint& checkpoint, const ModelConfig& config) {
  if (checkpoint.gguf_metadata() == nullptr) return naming_of(config);
  return {.name_in_file = gguf_name, .ignored_prefixes = {"rope_freqs."}};
}

// The tensors of a target, published or repacked. `accept` may throw for the latter.
std::unique_ptr<CheckpointSource> open_target(
    const Checkpoint& checkpoint, const ModelConfig& config,
    const std::function<void(RepackedSource& source)>& accept = {}) {
  CheckpointNaming naming = naming_of(checkpoint, config);
  auto header = read_repack_header(checkpoint.directory(), config);
  if (!header) return std::make_unique<CheckpointSource>(checkpoint, std::move(naming));
  auto source =
      std::make_unique<RepackedSource>(checkpoint, std::move(naming), std::move(*header), config);
  if (accept) accept(*source);
  return source;
}

CheckpointNaming drafter_naming(const Checkpoint& checkpoint) {
  // Some writers put "model." before every name.
  CheckpointNaming naming =
      safetensors_naming(checkpoint.contains("model.fc.weight") ? "model." : "");
  naming.refuse_unused = true;
  return naming;
}

bool is_drafter(const std::string& path) {
  const std::filesystem::path file = std::filesystem::path(path) / "config.json";
  if (!std::filesystem::exists(file)) return false;
  const Json document = read_json_file(file);
  const JsonField config(document, printable(file.string()));
  for (const std::string& name :
       config.get<std::vector<std::string>>("architectures", std::vector<std::string>()))
    if (name.find("DFlash") != std::string::npos) return true;
  return config.has("dflash_config") || config.has("speculators_model_type");
}

void check_equal(const std::string& file, const char* field, std::int64_t drafter,
                 std::int64_t target) {
  if (drafter == target) return;
  throw Error(ErrorKind::kBadFile, file + ": field '" + field + "': is " + std::to_string(drafter) +
                                       ", but the target has " + std::to_string(target));
}

// Norms of some rows of the target's embedding, [ids].
std::vector<double> embedding_norms(Backend& backend, Model& target,
                                    const std::vector<std::int32_t>& ids) {
  const auto count = static_cast<std::int64_t>(ids.size());
  const std::int64_t hidden_size = target.config().hidden_size;
  const DType act = backend.activation_dtype();
  const Buffer id_buffer = backend.allocate(ids.size() * sizeof(std::int32_t));
  const Buffer row_buffer =
      backend.allocate(static_cast<std::size_t>(count * hidden_size) * size_of(act));
  const Tensor id_tensor = id_buffer.tensor(DType::kI32, {count});
  const Tensor rows = row_buffer.tensor(act, {count, hidden_size});
  backend.upload(id_tensor, ids.data());
  target.embed(id_tensor, rows);
  std::vector<std::byte> host(row_buffer.num_bytes());
  backend.download(host.data(), rows);
  const WeightFormat format = act == DType::kF32   ? WeightFormat::kF32
                              : act == DType::kF16 ? WeightFormat::kF16
                                                   : WeightFormat::kBF16;
  const HostMatrix matrix{
      .format = format, .rows = count, .cols = hidden_size, .data = host.data()};
  std::vector<double> norms;
  std::vector<float> row(static_cast<std::size_t>(hidden_size));
  for (std::int64_t i = 0; i < count; ++i) {
    dequantize_row(matrix, i, row.data());
    double sum = 0;
    for (const float value : row) sum += double{value} * double{value};
    norms.push_back(std::sqrt(sum));
  }
  return norms;
}

// Some drafters were trained with a mask embedding that ships in a file of its own; with the
// target's row, which was never trained, they draft noise.
void check_mask_embedding(const std::string& file, Backend& backend, Model& target,
                          std::int64_t mask_token_id) {
  constexpr std::int64_t kSamples = 63;
  constexpr double kSmallest = 0.01;  // of the median
  std::vector<std::int32_t> ids{static_cast<std::int32_t>(mask_token_id)};
  for (std::int64_t i = 0; i < kSamples; ++i)
    ids.push_back(static_cast<std::int32_t>(target.config().vocab_size * i / kSamples));
  std::vector<double> norms = embedding_norms(backend, target, ids);
  const double mask_norm = norms[0];
  std::ranges::nth_element(norms, norms.begin() + kSamples / 2);
  if (mask_norm < kSmallest * norms[kSamples / 2])
    throw Error(ErrorKind::kUnsupported,
                file + ": field 'mask_token_id': the target's embedding of token " +
                    std::to_string(mask_token_id) +
                    " is close to zero; drafters with a mask embedding of their own are not "
                    "supported");
}

}  // namespace

void check_fits_target(const std::string& file, const DflashConfig& drafter,
                       const ModelConfig& target) {
  check_equal(file, "hidden_size", drafter.network.hidden_size, target.hidden_size);
  check_equal(file, "vocab_size", drafter.network.vocab_size, target.vocab_size);
  if (drafter.num_target_layers > 0)
    check_equal(file, "num_target_layers", drafter.num_target_layers, target.num_hidden_layers);
  if (drafter.target_layer_ids.back() >= target.num_hidden_layers)
    throw Error(ErrorKind::kBadFile, file + ": field 'target_layer_ids': names layer " +
                                         std::to_string(drafter.target_layer_ids.back()) +
                                         ", but the target has " +
                                         std::to_string(target.num_hidden_layers));
}

std::unique_ptr<Model> load_model(Backend& backend, const std::string& path,
                                  const ModelOptions& options, const ProgressCallback& progress) {
  const ModelConfig config = load_model_config(path);
  const Checkpoint checkpoint(path);
  const auto source = open_target(checkpoint, config, [&](RepackedSource& repacked) {
    repacked.check_suits(backend.name(), backend.expert_layout(), options.parallel);
  });
  return build_model(backend, config, *source, options, progress);
}

std::int64_t check_loadable(const std::string& path) {
  const auto check_all = [](CheckpointSource& source, const std::vector<WeightSpec>& specs) {
    std::size_t bytes = 0;
    for (const WeightSpec& spec : specs) bytes += source.check(spec);
    source.check_unused();
    return static_cast<std::int64_t>(bytes);
  };
  const bool drafter = is_drafter(path);
  const DflashConfig draft_config = drafter ? load_dflash_config(path) : DflashConfig{};
  const ModelConfig config = drafter ? ModelConfig{} : load_model_config(path);
  const Checkpoint checkpoint(path);
  if (!drafter) return check_all(*open_target(checkpoint, config), list_weights(config));
  CheckpointSource source(checkpoint, drafter_naming(checkpoint));
  return check_all(source, list_weights(draft_config));
}

std::unique_ptr<DflashModel> load_dflash_model(Backend& backend, const std::string& dir,
                                               Model& target, const ModelOptions& options,
                                               const ProgressCallback& progress) {
  DflashConfig config = load_dflash_config(dir);
  const std::string file = printable((std::filesystem::path(dir) / "config.json").string());
  check_fits_target(file, config, target.config());
  if (options.draft_attention_factor)
    config.network.rope.attention_factor = options.draft_attention_factor;
  const Checkpoint checkpoint(dir);
  CheckpointSource source(checkpoint, drafter_naming(checkpoint));
  DflashWeights weights = load_dflash_weights(backend, source, config, options.parallel, progress);
  check_mask_embedding(file, backend, target, config.mask_token_id);
  target.set_feature_layers(config.target_layer_ids);
  return make_dflash_model(backend, config, std::move(weights), target, options);
}

}  // namespace coppice
