// Reads what the checks need of tests/golden/tiny-k2: tensors of a safetensors file, integers of
// the json beside it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace coppice::kernels::checks {

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    std::fprintf(stderr, "%s: cannot open\n", path.c_str());
    std::exit(1);
  }
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// Elements of tensor `name`; T must match the file's dtype.
template <typename T>
std::vector<T> golden_tensor(const std::string& file, const std::string& name) {
  uint64_t header_size;
  std::memcpy(&header_size, file.data(), 8);
  const std::string header = file.substr(8, header_size);
  const size_t entry = header.find("\"" + name + "\"");
  const size_t offsets = header.find("data_offsets", entry);
  if (entry == std::string::npos || offsets == std::string::npos) {
    std::fprintf(stderr, "golden tensor '%s' is missing\n", name.c_str());
    std::exit(1);
  }
  size_t begin, end;
  std::sscanf(header.c_str() + header.find('[', offsets), "[%zu,%zu]", &begin, &end);
  std::vector<T> out((end - begin) / sizeof(T));
  std::memcpy(out.data(), file.data() + 8 + header_size + begin, end - begin);
  return out;
}

// The integers of the first array (or the number) after "section" ... "key".
inline std::vector<int> golden_ints(const std::string& json, const std::string& section,
                                    const std::string& key) {
  size_t at = json.find("\"" + section + "\"");
  at = json.find("\"" + key + "\"", at);
  at = json.find(':', at) + 1;
  while (json[at] == ' ') ++at;
  const bool array = json[at] == '[';
  std::vector<int> out;
  const char* cursor = json.c_str() + at + (array ? 1 : 0);
  while (true) {
    char* next;
    const long value = std::strtol(cursor, &next, 10);
    if (next == cursor) break;
    out.push_back(static_cast<int>(value));
    cursor = next;
    while (*cursor == ' ' || *cursor == ',') ++cursor;
    if (!array || *cursor == ']') break;
  }
  return out;
}

}  // namespace coppice::kernels::checks
