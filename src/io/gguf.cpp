#include "io/gguf.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

namespace coppice {
namespace {

constexpr std::uint64_t kMaxKeys = 1 << 16;
constexpr std::uint64_t kMaxTensors = 1 << 20;
constexpr std::uint64_t kMaxArrayItems = 1 << 24;  // over all arrays of a file
constexpr std::uint64_t kMaxStringBytes = 1 << 26;
constexpr std::uint32_t kMaxDims = 4;
constexpr std::uint64_t kMaxAlignment = 1 << 20;
constexpr int kMaxArrayDepth = 4;

// Numbers of the metadata value types.
enum ValueType : std::uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

struct TypeName {
  std::uint32_t number;
  const char* name;
  std::optional<StorageType> type;  // nothing: known, but not run
};
constexpr TypeName kTypes[] = {
    {0, "F32", StorageType::kF32},    {1, "F16", StorageType::kF16},
    {2, "Q4_0", StorageType::kQ4_0},  {3, "Q4_1", StorageType::kQ4_1},
    {6, "Q5_0", std::nullopt},        {7, "Q5_1", std::nullopt},
    {8, "Q8_0", StorageType::kQ8_0},  {9, "Q8_1", std::nullopt},
    {10, "Q2_K", std::nullopt},       {11, "Q3_K", std::nullopt},
    {12, "Q4_K", std::nullopt},       {13, "Q5_K", std::nullopt},
    {14, "Q6_K", std::nullopt},       {15, "Q8_K", std::nullopt},
    {16, "IQ2_XXS", std::nullopt},    {17, "IQ2_XS", std::nullopt},
    {18, "IQ3_XXS", std::nullopt},    {19, "IQ1_S", std::nullopt},
    {20, "IQ4_NL", std::nullopt},     {21, "IQ3_S", std::nullopt},
    {22, "IQ2_S", std::nullopt},      {23, "IQ4_XS", std::nullopt},
    {24, "I8", StorageType::kI8},     {25, "I16", StorageType::kI16},
    {26, "I32", StorageType::kI32},   {27, "I64", StorageType::kI64},
    {28, "F64", StorageType::kF64},   {29, "IQ1_M", std::nullopt},
    {30, "BF16", StorageType::kBF16}, {34, "TQ1_0", std::nullopt},
    {35, "TQ2_0", std::nullopt},      {39, "MXFP4", std::nullopt},
};

// Walks the file; every read names what it was for when the bytes run out.
class Cursor {
 public:
  explicit Cursor(const MappedFile& file) : file_(file), text_(file.text()) {}

  std::uint64_t position() const { return at_; }
  std::uint64_t left() const { return text_.size() - at_; }

  std::string_view bytes(std::uint64_t count, const std::string& what) {
    if (count > left())
      fail(what + ": needs " + std::to_string(count) + " bytes at byte " + std::to_string(at_) +
           ", the file has " + std::to_string(text_.size()));
    const std::string_view out = text_.substr(at_, count);
    at_ += count;
    return out;
  }

  template <typename T>
  T number(const std::string& what) {
    T value{};
    std::memcpy(&value, bytes(sizeof(T), what).data(), sizeof(T));
    return value;
  }

  std::string string(const std::string& what) {
    const auto length = number<std::uint64_t>(what);
    if (length > kMaxStringBytes)
      fail(what + ": a string of " + std::to_string(length) + " bytes is over the limit");
    return std::string(bytes(length, what));
  }

  [[noreturn]] void fail(const std::string& cause, ErrorKind kind = ErrorKind::kBadFile) const {
    throw Error(kind, file_.name() + ": " + cause);
  }

  // Counts items against the limit over the whole file.
  void take_items(std::uint64_t count, std::uint64_t bytes_each, const std::string& what) {
    if (count > left() / bytes_each)
      fail(what + ": " + std::to_string(count) + " items do not fit in the file");
    if (count > kMaxArrayItems - items_)
      fail(what + ": " + std::to_string(count) + " items are over the limit");
    items_ += count;
  }

 private:
  const MappedFile& file_;
  std::string_view text_;
  std::uint64_t at_ = 0;
  std::uint64_t items_ = 0;
};

std::uint64_t smallest_bytes(std::uint32_t type) {
  switch (type) {
    case kUint8:
    case kInt8:
    case kBool:
      return 1;
    case kUint16:
    case kInt16:
      return 2;
    case kUint32:
    case kInt32:
    case kFloat32:
      return 4;
    case kArray:
      return 12;
    default:
      return 8;
  }
}

Json finite(double value, Cursor& in, const std::string& what) {
  if (!std::isfinite(value)) in.fail(what + ": not a finite number");
  return Json(value);
}

Json read_value(std::uint32_t type, int depth, Cursor& in, const std::string& what);

Json read_array(int depth, Cursor& in, const std::string& what) {
  if (depth >= kMaxArrayDepth) in.fail(what + ": arrays nested too deep");
  const auto type = in.number<std::uint32_t>(what);
  const auto count = in.number<std::uint64_t>(what);
  in.take_items(count, smallest_bytes(type), what);
  Json::Array items;
  items.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) items.push_back(read_value(type, depth + 1, in, what));
  return Json(std::move(items));
}

Json read_value(std::uint32_t type, int depth, Cursor& in, const std::string& what) {
  switch (type) {
    case kUint8:
      return Json(std::int64_t{in.number<std::uint8_t>(what)});
    case kInt8:
      return Json(std::int64_t{in.number<std::int8_t>(what)});
    case kUint16:
      return Json(std::int64_t{in.number<std::uint16_t>(what)});
    case kInt16:
      return Json(std::int64_t{in.number<std::int16_t>(what)});
    case kUint32:
      return Json(std::int64_t{in.number<std::uint32_t>(what)});
    case kInt32:
      return Json(std::int64_t{in.number<std::int32_t>(what)});
    case kFloat32:
      return finite(static_cast<double>(in.number<float>(what)), in, what);
    case kBool: {
      const auto value = in.number<std::uint8_t>(what);
      if (value > 1) in.fail(what + ": boolean is " + std::to_string(value));
      return Json(value == 1);
    }
    case kString:
      return Json(in.string(what));
    case kArray:
      return read_array(depth, in, what);
    case kUint64:
      return Json(in.number<std::uint64_t>(what));
    case kInt64:
      return Json(in.number<std::int64_t>(what));
    case kFloat64:
      return finite(in.number<double>(what), in, what);
    default:
      in.fail(what + ": unknown value type " + std::to_string(type));
  }
}

// Refuses a name that occurs twice. Sorting keeps 2^20 tensors quick.
template <typename Items, typename NameOf>
void check_unique(const Items& items, const NameOf& name_of_item, const char* kind,
                  const Cursor& in) {
  std::vector<std::string_view> names;
  for (const auto& item : items) names.push_back(name_of_item(item));
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end())
    in.fail(std::string(kind) + " '" + printable(*twice) + "' occurs twice");
}

struct Counts {
  std::uint64_t tensors;
  std::uint64_t keys;
};

Counts read_start(Cursor& in, const MappedFile& file) {
  if (!file.text().starts_with("GGUF")) {
    const std::string_view other = looks_like(file.text());
    in.fail(other.empty() ? "not a GGUF file" : "not a GGUF file but " + std::string(other));
  }
  in.bytes(4, "magic");
  const auto version = in.number<std::uint32_t>("version");
  if (version == 0x03000000u)
    in.fail("a big-endian GGUF file; get the little-endian one", ErrorKind::kUnsupported);
  if (version != 3)
    in.fail("GGUF version " + std::to_string(version) + "; version 3 is supported",
            ErrorKind::kUnsupported);
  const auto tensors = in.number<std::uint64_t>("tensor count");
  const auto keys = in.number<std::uint64_t>("key count");
  // A key takes at least 13 bytes, a tensor info 24.
  if (tensors > kMaxTensors || tensors > in.left() / 24)
    in.fail("tensor count " + std::to_string(tensors) + " is too large for the file");
  if (keys > kMaxKeys || keys > in.left() / 13)
    in.fail("key count " + std::to_string(keys) + " is too large for the file");
  return {tensors, keys};
}

Json read_metadata(std::uint64_t count, Cursor& in) {
  Json::Object members;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::string key = in.string("key " + std::to_string(i));
    const std::string what = "key '" + printable(key) + "'";
    const auto type = in.number<std::uint32_t>(what);
    members.emplace_back(std::move(key), read_value(type, 0, in, what));
  }
  check_unique(
      members, [](const Json::Member& member) { return std::string_view(member.first); }, "key",
      in);
  return Json(std::move(members));
}

StorageType storage_type(std::uint32_t number, Cursor& in, const std::string& what) {
  for (const TypeName& known : kTypes) {
    if (known.number != number) continue;
    if (known.type) return *known.type;
    in.fail(what + ": type " + known.name +
                " is not supported; get a Q4_0, Q4_1, Q8_0, F16, BF16 or F32 version of this file",
            ErrorKind::kUnsupported);
  }
  in.fail(what + ": unknown type number " + std::to_string(number));
}

// `offset` is relative to the data until the whole list is read.
TensorInfo read_tensor_info(Cursor& in) {
  TensorInfo info;
  info.name = in.string("tensor name");
  const std::string what = "tensor '" + printable(info.name) + "'";
  const auto num_dims = in.number<std::uint32_t>(what);
  if (num_dims > kMaxDims) in.fail(what + ": " + std::to_string(num_dims) + " dimensions");
  for (std::uint32_t dim = 0; dim < num_dims; ++dim) {
    const auto size = in.number<std::uint64_t>(what);
    if (size > static_cast<std::uint64_t>(INT64_MAX))
      in.fail(what + ": dimension " + std::to_string(size) + " overflows");
    info.shape.insert(info.shape.begin(), static_cast<std::int64_t>(size));
  }
  info.type = storage_type(in.number<std::uint32_t>(what), in, what);
  info.offset = in.number<std::uint64_t>(what);
  const std::optional<std::uint64_t> bytes = storage_bytes(info.type, info.shape);
  if (!bytes) in.fail(what + ": shape " + info.describe() + " overflows or fills no whole blocks");
  info.num_bytes = *bytes;
  return info;
}

std::uint64_t round_up(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

// Turns offsets into file offsets and checks that tensors follow each other with padding only.
void place_tensors(std::vector<TensorInfo>& tensors, std::uint64_t data_start,
                   std::uint64_t alignment, const MappedFile& file, const Cursor& in) {
  std::vector<TensorInfo*> order;
  for (TensorInfo& info : tensors) order.push_back(&info);
  std::sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return a->offset != b->offset ? a->offset < b->offset : a->num_bytes < b->num_bytes;
  });
  const std::uint64_t data_bytes = file.size() > data_start ? file.size() - data_start : 0;
  std::uint64_t end = 0;
  for (TensorInfo* info : order) {
    const std::string what = "tensor '" + printable(info->name) + "'";
    if (info->offset > data_bytes || info->num_bytes > data_bytes - info->offset)
      in.fail(what + ": " + info->describe() + " at byte " + std::to_string(info->offset) +
              " of the data ends beyond the file");
    if (info->offset < end) in.fail(what + ": overlaps the tensor before it");
    if (info->offset != round_up(end, alignment))
      in.fail(what + ": offset " + std::to_string(info->offset) + " is not the expected " +
              std::to_string(round_up(end, alignment)));
    end = info->offset + info->num_bytes;
    info->offset += data_start;
  }
  if (data_bytes > round_up(end, alignment))
    in.fail(std::to_string(data_bytes - end) + " bytes follow the last tensor");
}

std::uint64_t read_alignment(const JsonField& metadata) {
  const auto alignment = metadata.get<std::uint64_t>("general.alignment", 32);
  if (!std::has_single_bit(alignment) || alignment < 8 || alignment > kMaxAlignment)
    metadata.at("general.alignment").fail(std::to_string(alignment) + " is no usable alignment");
  return alignment;
}

}  // namespace

GgufFile::GgufFile(const std::filesystem::path& path) : file_(path) {
  Cursor in(file_);
  const Counts counts = read_start(in, file_);
  metadata_ = read_metadata(counts.keys, in);
  const auto splits = fields().get<std::int64_t>("split.count", 1);
  if (splits > 1)
    in.fail("one of " + std::to_string(splits) + " split files; merge them with llama-gguf-split",
            ErrorKind::kUnsupported);
  for (std::uint64_t i = 0; i < counts.tensors; ++i) tensors_.push_back(read_tensor_info(in));
  check_unique(
      tensors_, [](const TensorInfo& info) { return std::string_view(info.name); }, "tensor", in);
  const std::uint64_t alignment = read_alignment(fields());
  place_tensors(tensors_, round_up(in.position(), alignment), alignment, file_, in);
}

GgufVocabulary read_gguf_vocabulary(const JsonField& metadata) {
  GgufVocabulary vocabulary;
  vocabulary.model = metadata.get<std::string>("tokenizer.ggml.model");
  vocabulary.pre = metadata.get("tokenizer.ggml.pre", "");
  vocabulary.tokens = metadata.get<std::vector<std::string>>("tokenizer.ggml.tokens");
  vocabulary.scores = metadata.get("tokenizer.ggml.scores", std::vector<float>());
  vocabulary.token_types = metadata.get("tokenizer.ggml.token_type", std::vector<std::int32_t>());
  vocabulary.merges = metadata.get("tokenizer.ggml.merges", std::vector<std::string>());
  vocabulary.bos_token_id = metadata.get<std::int64_t>("tokenizer.ggml.bos_token_id", -1);
  vocabulary.eos_token_id = metadata.get<std::int64_t>("tokenizer.ggml.eos_token_id", -1);
  if (const auto add = metadata.find("tokenizer.ggml.add_bos_token"))
    vocabulary.add_bos_token = add->as<bool>();
  vocabulary.add_eos_token = metadata.get<bool>("tokenizer.ggml.add_eos_token", false);
  vocabulary.chat_template = metadata.get("tokenizer.chat_template", "");
  const std::size_t size = vocabulary.tokens.size();
  const auto check_length = [&](std::size_t length, const char* key) {
    if (length != 0 && length != size)
      metadata.at(key).fail(std::to_string(length) + " items for " + std::to_string(size) +
                            " tokens");
  };
  check_length(vocabulary.scores.size(), "tokenizer.ggml.scores");
  check_length(vocabulary.token_types.size(), "tokenizer.ggml.token_type");
  return vocabulary;
}

}  // namespace coppice
