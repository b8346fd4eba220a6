#include "io/model_folder.h"

#include <cstdio>

#include "base/error.h"
#include "io/mapped_file.h"

namespace coppice {
namespace fs = std::filesystem;

void prepare_destination(const fs::path& destination) {
  const std::string name = printable(destination.string());
  std::error_code ec;
  fs::create_directories(destination, ec);
  if (ec) throw Error(ErrorKind::kInvalidArgument, name + ": cannot create: " + ec.message());
  if (!fs::is_empty(destination, ec) || ec)
    throw Error(ErrorKind::kInvalidArgument, name + ": is not an empty folder");
}

void copy_small_files(const fs::path& source, const fs::path& destination) {
  for (const fs::directory_entry& entry : fs::directory_iterator(source)) {
    const std::string name = entry.path().filename().string();
    const std::string extension = entry.path().extension().string();
    const bool is_weight = extension == ".safetensors" || extension == ".bin" ||
                           extension == ".pt" || extension == ".pth" || extension == ".gguf";
    if (!entry.is_regular_file() || is_weight || name.starts_with(".") || name == "config.json" ||
        name.ends_with(".index.json"))
      continue;
    fs::copy_file(entry.path(), destination / name);
  }
}

std::string shard_name(std::size_t shard, std::size_t count) {
  char name[64];
  std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", shard + 1, count);
  return name;
}

}  // namespace coppice
