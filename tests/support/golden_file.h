// One prompt of tests/golden/tiny-k2 (its README says what every tensor means).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "tests/support/source_dir.h"

namespace coppice::testing {

inline const std::string kTinyK2 = source_dir() + "/models/tiny-k2";
inline const std::string kTinyK2Dflash = kTinyK2 + "-dflash";
inline constexpr const char* kGoldenPrompts[] = {"code_short", "code_long",        "prose_mid",
                                                 "prose_300",  "chat_arithmetic",  "chat_code",
                                                 "chat_tool",  "chat_tool_result", "code_1400"};

struct GoldenFile {
  explicit GoldenFile(const std::string& name)
      : file(source_dir() + "/tests/golden/tiny-k2/" + name + ".safetensors") {}

  std::span<const float> floats(const std::string& name) const {
    const Tensor tensor = file.tensor(name);
    return {tensor.data<float>(), static_cast<std::size_t>(tensor.num_elements())};
  }
  std::span<const std::int32_t> ints(const std::string& name) const {
    const Tensor tensor = file.tensor(name);
    return {tensor.data<std::int32_t>(), static_cast<std::size_t>(tensor.num_elements())};
  }
  // The prompt positions whose rows are stored.
  std::vector<std::size_t> positions() const {
    const std::size_t n = ints("token_ids").size();
    return {0, 1, n / 3, n / 2, n - 2, n - 1};
  }

  Checkpoint file;
};

}  // namespace coppice::testing
