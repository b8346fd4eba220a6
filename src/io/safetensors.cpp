#include "io/safetensors.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "io/json_field.h"

namespace coppice {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::size_t kMaxDims = 8;

[[noreturn]] void fail(const MappedFile& file, const std::string& cause) {
  throw Error(ErrorKind::kBadFile, file.name() + ": " + cause);
}

[[noreturn]] void fail(const MappedFile& file, std::string_view tensor, const std::string& cause) {
  fail(file, "tensor '" + printable(tensor) + "': " + cause);
}

// The JSON text of the header.
std::string_view header_text(const MappedFile& file) {
  const std::string_view text = file.text();
  if (const std::string_view other = looks_like(text); !other.empty())
    fail(file, "not a safetensors file but " + std::string(other));
  if (text.size() < kLengthBytes)
    fail(file, "only " + std::to_string(text.size()) + " bytes, no room for the header length");
  std::uint64_t length = 0;
  std::memcpy(&length, text.data(), sizeof(length));
  if (length > kMaxHeaderBytes)
    fail(file, "header length " + std::to_string(length) + " is over the limit of " +
                   std::to_string(kMaxHeaderBytes) + " (not a safetensors file?)");
  if (length > file.size() - kLengthBytes)
    fail(file, "header of " + std::to_string(length) + " bytes is cut short: the file has " +
                   std::to_string(file.size()));
  const std::string_view header = text.substr(kLengthBytes, length);
  if (header.empty() || header.front() != '{') fail(file, "the header does not start with '{'");
  return header;
}

std::int64_t dimension(const Json& value, const MappedFile& file, const std::string& name) {
  if (value.kind() != Json::Kind::kInt || value.as_int() < 0)
    fail(file, name, "dimension " + printable(write_json(value)) + " is no size");
  return value.as_int();
}

const Json& member(const Json& entry, std::string_view key, Json::Kind kind, const MappedFile& file,
                   const std::string& name) {
  const Json* found = entry.find(key);
  if (found == nullptr) fail(file, name, "no " + std::string(key));
  if (found->kind() != kind)
    fail(file, name, std::string(key) + " is " + name_of(found->kind()) + ", not " + name_of(kind));
  return *found;
}

TensorInfo read_entry(const std::string& name, const Json& entry, std::uint64_t data_bytes,
                      std::uint64_t data_start, const MappedFile& file) {
  if (!entry.is_object()) fail(file, name, std::string("entry is ") + name_of(entry.kind()));
  TensorInfo info;
  info.name = name;
  const std::string& dtype = member(entry, "dtype", Json::Kind::kString, file, name).as_string();
  const std::optional<StorageType> type = safetensors_type(dtype);
  if (!type) fail(file, name, "unknown dtype '" + printable(dtype) + "'");
  info.type = *type;
  const Json::Array& shape = member(entry, "shape", Json::Kind::kArray, file, name).as_array();
  if (shape.size() > kMaxDims)
    fail(file, name,
         std::to_string(shape.size()) + " dimensions, at most " + std::to_string(kMaxDims) +
             " are read");
  for (const Json& size : shape) info.shape.push_back(dimension(size, file, name));
  const Json::Array& range =
      member(entry, "data_offsets", Json::Kind::kArray, file, name).as_array();
  if (range.size() != 2 || range[0].kind() != Json::Kind::kInt ||
      range[1].kind() != Json::Kind::kInt || range[0].as_int() < 0 ||
      range[1].as_int() < range[0].as_int())
    fail(file, name, "data_offsets are no range [begin, end)");
  const auto begin = static_cast<std::uint64_t>(range[0].as_int());
  const auto end = static_cast<std::uint64_t>(range[1].as_int());
  if (end > data_bytes)
    fail(file, name,
         "ends at byte " + std::to_string(end) + " of the data, the file has " +
             std::to_string(data_bytes));
  const std::optional<std::uint64_t> bytes = storage_bytes(info.type, info.shape);
  if (!bytes) fail(file, name, "shape " + info.describe() + " overflows or fills no whole bytes");
  if (*bytes != end - begin)
    fail(file, name,
         info.describe() + " needs " + std::to_string(*bytes) + " bytes, data_offsets give " +
             std::to_string(end - begin));
  info.offset = data_start + begin;
  info.num_bytes = *bytes;
  return info;
}

// Sorted by offset, each tensor starts where the one before it ends, and the last ends the file.
void check_tiling(const std::vector<TensorInfo>& tensors, std::uint64_t data_start,
                  const MappedFile& file) {
  std::vector<const TensorInfo*> order;
  for (const TensorInfo& info : tensors) order.push_back(&info);
  std::sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return a->offset != b->offset ? a->offset < b->offset : a->num_bytes < b->num_bytes;
  });
  std::uint64_t end = data_start;
  for (const TensorInfo* info : order) {
    if (info->offset < end)
      fail(file, info->name,
           "overlaps the tensor before it by " + std::to_string(end - info->offset) + " bytes");
    if (info->offset > end)
      fail(file, info->name,
           "a hole of " + std::to_string(info->offset - end) + " bytes lies before it");
    end = info->offset + info->num_bytes;
  }
  if (end != file.size())
    fail(file, std::to_string(file.size() - end) + " bytes follow the last tensor");
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path, std::uint32_t file_index)
    : file_(path) {
  const std::string_view header = header_text(file_);
  const std::uint64_t data_start = kLengthBytes + header.size();
  const std::uint64_t data_bytes = file_.size() - data_start;
  const Json document = parse_json(header, file_.name() + ": header");
  tensors_.reserve(document.size());
  for (const auto& [name, entry] : document.as_object()) {
    if (name == "__metadata__") {
      if (!entry.is_object()) fail(file_, "__metadata__ is no object");
      for (const auto& [key, value] : entry.as_object()) {
        if (!value.is_string()) fail(file_, "__metadata__." + printable(key) + " is no string");
        metadata_.emplace_back(key, value.as_string());
      }
      continue;
    }
    tensors_.push_back(read_entry(name, entry, data_bytes, data_start, file_));
    tensors_.back().file = file_index;
  }
  check_tiling(tensors_, data_start, file_);
}

}  // namespace coppice
