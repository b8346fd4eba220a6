#include "io/checkpoint_files.h"

#include <algorithm>
#include <map>

#include "io/json_field.h"
#include "io/mapped_file.h"

namespace coppice {
namespace {

namespace fs = std::filesystem;

std::string shown(const fs::path& path) {
  return printable(path.string());
}

// A name that cannot leave the directory.
bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos &&
         name.ends_with(".safetensors");
}

CheckpointFiles read_index(const fs::path& index_path) {
  const Json document = read_json_file(index_path);
  const JsonField root(document, shown(index_path));
  const JsonField weight_map = root.at("weight_map");
  if (!weight_map.value().is_object()) weight_map.fail("expected an object");
  CheckpointFiles found;
  found.index_path = index_path;
  std::map<std::string, std::uint32_t, std::less<>> files;
  for (const auto& [tensor, file] : weight_map.value().as_object()) {
    if (!file.is_string() || !is_plain_file_name(file.as_string()))
      throw Error(ErrorKind::kBadFile, shown(index_path) + ": tensor '" + printable(tensor) +
                                           "': " + printable(write_json(file)) +
                                           " is no name of a .safetensors file beside the index");
    files.try_emplace(file.as_string(), 0);
  }
  if (files.empty()) weight_map.fail("names no tensor");
  for (auto& [name, index] : files) {
    index = static_cast<std::uint32_t>(found.paths.size());
    found.paths.push_back(index_path.parent_path() / name);
  }
  for (const auto& [tensor, file] : weight_map.value().as_object())
    found.weight_map.emplace_back(tensor, files.find(file.as_string())->second);
  for (const fs::path& path : found.paths)
    if (!fs::exists(path))
      throw Error(ErrorKind::kNotFound, shown(path) + ": no such file, but " +
                                            index_path.filename().string() +
                                            " names it (an incomplete download?)");
  return found;
}

std::vector<fs::path> files_ending(const fs::path& directory, const std::string& extension) {
  std::vector<fs::path> paths;
  std::error_code ec;
  for (fs::directory_iterator it(directory, ec), end; !ec && it != end; it.increment(ec))
    if (it->path().extension() == extension) paths.push_back(it->path());
  if (ec) throw Error(ErrorKind::kBadFile, shown(directory) + ": " + ec.message());
  std::sort(paths.begin(), paths.end());
  return paths;
}

CheckpointFiles find_in_directory(const fs::path& directory) {
  std::error_code ec;
  if (fs::exists(directory / "model.safetensors", ec))
    return {.paths = {directory / "model.safetensors"}};
  if (const fs::path index = directory / "model.safetensors.index.json"; fs::exists(index, ec))
    return read_index(index);
  for (const std::string extension : {".safetensors", ".gguf"}) {
    std::vector<fs::path> paths = files_ending(directory, extension);
    if (paths.size() > 1)
      throw Error(ErrorKind::kBadFile,
                  shown(directory) + ": " + std::to_string(paths.size()) + " " + extension +
                      " files and no model.safetensors.index.json: give one file as the model");
    if (paths.size() == 1) return {.is_gguf = extension == ".gguf", .paths = std::move(paths)};
  }
  if (!files_ending(directory, ".bin").empty())
    throw Error(ErrorKind::kUnsupported,
                shown(directory) + ": only PyTorch .bin files; get the safetensors version");
  throw Error(ErrorKind::kNotFound,
              shown(directory) + ": no checkpoint (no .safetensors or .gguf file) in this folder");
}

}  // namespace

CheckpointFiles find_checkpoint_files(const fs::path& path) {
  std::error_code ec;
  const fs::file_status status = fs::status(path, ec);
  if (status.type() == fs::file_type::not_found)
    throw Error(ErrorKind::kNotFound, shown(path) + ": no such file or folder");
  if (ec) throw Error(ErrorKind::kBadFile, shown(path) + ": " + ec.message());
  if (fs::is_directory(status)) return find_in_directory(path);
  if (path.extension() == ".safetensors") return {.paths = {path}};
  if (path.extension() == ".gguf") return {.is_gguf = true, .paths = {path}};
  if (path.filename().string().ends_with(".safetensors.index.json")) return read_index(path);
  throw Error(ErrorKind::kBadFile,
              shown(path) + ": neither a folder nor a .safetensors or .gguf file");
}

}  // namespace coppice
