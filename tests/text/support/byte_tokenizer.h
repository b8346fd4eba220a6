// A tokenizer.json without merges: ids 0 to 255 are bytes, added tokens follow.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/json.h"
#include "text/byte_alphabet.h"

namespace coppice::test {

// Every third added token is not "special".
inline Json byte_tokenizer_json(const std::vector<std::string>& added) {
  Json vocabulary = Json::object(), tokens = Json::array();
  for (int byte = 0; byte < 256; ++byte) {
    for (std::uint32_t point = 0; point < 0x200; ++point) {
      std::string spelled;
      if (point < 0x80)
        spelled = static_cast<char>(point);
      else
        spelled = {static_cast<char>(0xc0 | point >> 6), static_cast<char>(0x80 | (point & 0x3f))};
      if (bytes_of_alphabet(spelled) == std::string(1, static_cast<char>(byte)))
        vocabulary[spelled] = Json(byte);
    }
  }
  for (std::size_t i = 0; i < added.size(); ++i)
    tokens.push_back(Json::object({{"id", Json(256 + static_cast<int>(i))},
                                   {"content", Json(added[i])},
                                   {"special", Json(i % 3 != 2)}}));
  Json document = Json::object();
  document["added_tokens"] = tokens;
  document["pre_tokenizer"] =
      Json::object({{"type", "ByteLevel"}, {"add_prefix_space", Json(false)}});
  document["model"] =
      Json::object({{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array()}});
  return document;
}

}  // namespace coppice::test
