#include "io/mapped_file.h"
#include "model/config_fields.h"

namespace coppice {
namespace {

double read_positive(const JsonField& scaling, const char* key) {
  const JsonField field = scaling.at(key);
  const double value = field.as<double>();
  if (!(value > 0)) field.fail("must be greater than 0");
  return value;
}

double read_positive_or(const JsonField& scaling, const char* key, double otherwise) {
  return scaling.has(key) ? read_positive(scaling, key) : otherwise;
}

// `rope_type`, or `type` in older files; both must agree.
std::string read_type(const JsonField& scaling, bool is_rope_parameters) {
  const auto rope_type = scaling.find("rope_type");
  const auto type = scaling.find("type");
  if (rope_type && type && rope_type->as<std::string>() != type->as<std::string>())
    type->fail("disagrees with rope_type");
  if (rope_type) return rope_type->as<std::string>();
  if (type) return type->as<std::string>();
  if (is_rope_parameters) return "default";
  scaling.fail("has no rope_type");
}

void read_yarn(const JsonField& scaling, RopeConfig& rope) {
  rope.type = RopeType::kYarn;
  rope.beta_fast = read_positive_or(scaling, "beta_fast", 32);
  rope.beta_slow = read_positive_or(scaling, "beta_slow", 1);
  rope.mscale = scaling.get<double>("mscale", 1);
  rope.mscale_all_dim = scaling.get<double>("mscale_all_dim", 0);
  if (scaling.has("attention_factor"))
    rope.attention_factor = read_positive(scaling, "attention_factor");
  require_equal(scaling, "truncate", true);
}

void read_llama3(const JsonField& scaling, RopeConfig& rope) {
  rope.type = RopeType::kLlama3;
  rope.low_freq_factor = read_positive(scaling, "low_freq_factor");
  rope.high_freq_factor = read_positive(scaling, "high_freq_factor");
  if (rope.high_freq_factor <= rope.low_freq_factor)
    scaling.at("high_freq_factor").fail("must be greater than low_freq_factor");
}

}  // namespace

RopeConfig read_rope(const JsonField& config, std::int64_t max_position_embeddings) {
  const auto parameters = config.find("rope_parameters");
  const auto scaling = parameters ? parameters : config.find("rope_scaling");
  RopeConfig rope;
  const bool theta_inside = parameters && parameters->has("rope_theta");
  rope.theta = read_positive_or(theta_inside ? *parameters : config, "rope_theta", 10000);
  if (rope.theta <= 1) config.fail("rope_theta must be greater than 1");
  require_equal(config, "partial_rotary_factor", 1.0);
  if (!scaling) return rope;
  require_equal(*scaling, "partial_rotary_factor", 1.0);
  if (scaling->has("full_attention") || scaling->has("sliding_attention"))
    fail_unsupported(*scaling, "rotary parameters per layer type are not supported");

  const std::string type = read_type(*scaling, parameters.has_value());
  if (type == "default") return rope;
  if (type != "yarn" && type != "llama3")
    fail_unsupported(*scaling, "rope_type '" + printable(type) +
                                   "' is not supported (default, yarn and llama3 are)");
  rope.factor = read_positive(*scaling, "factor");
  if (rope.factor < 1) scaling->at("factor").fail("must be at least 1");
  rope.original_max_position_embeddings =
      read_size_or(*scaling, "original_max_position_embeddings", max_position_embeddings);
  type == "yarn" ? read_yarn(*scaling, rope) : read_llama3(*scaling, rope);
  return rope;
}

}  // namespace coppice
