// Builds the bytes of small GGUF files for tests, valid or not.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace coppice::test {

template <typename T>
std::string raw(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

inline std::string gguf_string(const std::string& text) {
  return raw<std::uint64_t>(text.size()) + text;
}

class GgufBuilder {
 public:
  // `value` is the raw bytes of a value of this type number.
  GgufBuilder& key(const std::string& name, std::uint32_t type, const std::string& value) {
    keys_ += gguf_string(name) + raw(type) + value;
    ++num_keys_;
    return *this;
  }
  GgufBuilder& string(const std::string& name, const std::string& value) {
    return key(name, 8, gguf_string(value));
  }
  GgufBuilder& strings(const std::string& name, const std::vector<std::string>& values) {
    std::string bytes = raw<std::uint32_t>(8) + raw<std::uint64_t>(values.size());
    for (const std::string& value : values) bytes += gguf_string(value);
    return key(name, 9, bytes);
  }
  // `sizes` innermost first, as in the file.
  GgufBuilder& tensor(const std::string& name, const std::vector<std::uint64_t>& sizes,
                      std::uint32_t type, std::uint64_t offset) {
    tensors_ += gguf_string(name) + raw(static_cast<std::uint32_t>(sizes.size()));
    for (const std::uint64_t size : sizes) tensors_ += raw(size);
    tensors_ += raw(type) + raw(offset);
    ++num_tensors_;
    return *this;
  }
  std::string build(const std::string& data = "", std::size_t alignment = 32,
                    std::uint32_t version = 3) const {
    std::string bytes =
        "GGUF" + raw(version) + raw(num_tensors_) + raw(num_keys_) + keys_ + tensors_;
    bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
    return bytes + data;
  }

 private:
  std::string keys_, tensors_;
  std::uint64_t num_keys_ = 0, num_tensors_ = 0;
};

}  // namespace coppice::test
