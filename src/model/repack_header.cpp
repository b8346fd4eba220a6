#include "model/repack_header.h"

#include <array>
#include <charconv>
#include <cstdio>
#include <utility>

#include "io/json_field.h"
#include "io/mapped_file.h"
#include "io/safetensors_writer.h"

namespace coppice {
namespace {

constexpr char kFormat[] = "coppice-repack-1";

std::array<std::pair<const char*, std::int64_t>, 4> shape_of(const ModelConfig& c) {
  return {{{"num_hidden_layers", c.num_hidden_layers},
           {"n_routed_experts", c.n_routed_experts},
           {"hidden_size", c.hidden_size},
           {"moe_intermediate_size", c.moe_intermediate_size}}};
}

std::string hexadecimal(std::uint64_t value) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

std::uint64_t parse_hexadecimal(const JsonField& field) {
  const auto text = field.as<std::string>();
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size() || text.empty())
    field.fail("'" + printable(text) + "' is no checksum");
  return value;
}

}  // namespace

std::optional<RepackHeader> read_repack_header(const std::filesystem::path& folder,
                                               const ModelConfig& config) {
  const std::filesystem::path path = folder / kRepackHeaderName;
  if (!std::filesystem::exists(path)) return std::nullopt;
  const Json document = read_json_file(path);
  const JsonField json(document, printable(path.string()));
  if (const auto format = json.get<std::string>("format"); format != kFormat)
    json.at("format").fail("is '" + printable(format) + "', this version reads '" + kFormat + "'");
  json.allow_only({"format", "layout", "tensor_parallel_size", "num_hidden_layers",
                   "n_routed_experts", "hidden_size", "moe_intermediate_size", "checksums"});
  for (const auto& [name, expected] : shape_of(config))
    if (const auto value = json.get<std::int64_t>(name); value != expected)
      json.at(name).fail("is " + std::to_string(value) + ", but config.json says " +
                         std::to_string(expected) + ": repack the model again");
  RepackHeader header = {.layout = json.get<std::string>("layout"),
                         .num_ranks = json.get<std::int64_t>("tensor_parallel_size"),
                         .checksums = {}};
  for (const auto& [name, field] : json.at("checksums").members())
    header.checksums[name] = parse_hexadecimal(field);
  return header;
}

void write_repack_header(const std::filesystem::path& folder, const RepackHeader& header,
                         const ModelConfig& config) {
  Json json = Json::object(
      {{"format", kFormat}, {"layout", header.layout}, {"tensor_parallel_size", header.num_ranks}});
  for (const auto& [name, value] : shape_of(config)) json[name] = value;
  Json checksums = Json::object();
  for (const auto& [name, value] : header.checksums) checksums[name] = hexadecimal(value);
  json["checksums"] = std::move(checksums);
  write_text_file(folder / kRepackHeaderName, write_json(json, {.indent = 1}) + "\n");
}

std::string repacked_name(const std::string& prefix, std::int64_t rank, const char* which) {
  return prefix + "rank" + std::to_string(rank) + "." + which;
}

}  // namespace coppice
