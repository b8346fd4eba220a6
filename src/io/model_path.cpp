#include "io/model_path.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>

#include "base/error.h"
#include "io/mapped_file.h"

namespace coppice {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// One part of a hub id, or a revision: no separators, no "..".
bool is_plain_name(const std::string& name) {
  return !name.empty() && name.find("..") == std::string::npos &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
         });
}

// The commit that a branch or tag stands for, or the name itself.
std::string commit_of(const fs::path& repository, const std::string& revision) {
  std::ifstream reference(repository / "refs" / revision);
  std::string commit;
  return reference >> commit && is_plain_name(commit) ? commit : revision;
}

}  // namespace

fs::path hub_cache_from_environment() {
  if (const std::string cache = environment("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = environment("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  if (const std::string xdg = environment("XDG_CACHE_HOME"); !xdg.empty())
    return fs::path(xdg) / "huggingface" / "hub";
  return fs::path(environment("HOME")) / ".cache" / "huggingface" / "hub";
}

fs::path resolve_model(const std::string& model, const fs::path& hub_cache) {
  std::error_code ec;
  if (!model.empty() && fs::exists(model, ec)) return model;
  const std::size_t slash = model.find('/'), at = model.find('@');
  const std::string id = model.substr(0, at);
  const std::string revision = at == std::string::npos ? "main" : model.substr(at + 1);
  const std::string owner = id.substr(0, slash);
  const std::string name =
      slash == std::string::npos ? "" : id.substr(std::min(slash + 1, id.size()));
  if (!is_plain_name(owner) || !is_plain_name(name) || !is_plain_name(revision))
    throw Error(ErrorKind::kNotFound, "model '" + printable(model) +
                                          "': no such file or folder, and no hub id (owner/name)");
  const fs::path repository = hub_cache / ("models--" + owner + "--" + name);
  fs::path snapshot = repository / "snapshots" / commit_of(repository, revision);
  if (fs::is_directory(snapshot, ec)) return snapshot;
  const std::string wanted = at == std::string::npos ? "" : " --revision " + revision;
  throw Error(ErrorKind::kNotFound, "model '" + printable(model) + "': no such path and not in " +
                                        printable(hub_cache.string()) +
                                        "; fetch it with: hf download " + id + wanted);
}

}  // namespace coppice
