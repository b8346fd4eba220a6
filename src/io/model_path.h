// From what a user gives as MODEL to a path: a local path, or a Hugging Face hub id that the hub's
// own tools have downloaded. Coppice itself downloads nothing.
#pragma once

#include <filesystem>
#include <string>

namespace coppice {

// Where huggingface_hub keeps its snapshots: $HF_HUB_CACHE, else $HF_HOME/hub, else
// $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub.
std::filesystem::path hub_cache_from_environment();

// A path that exists is returned as it is. "org/name" or "org/name@revision" becomes the snapshot
// folder in `hub_cache` (revision: a branch, tag or commit; "main" when not given). Otherwise
// throws kNotFound with one line that says how to fetch the model.
std::filesystem::path resolve_model(const std::string& model,
                                    const std::filesystem::path& hub_cache);
inline std::filesystem::path resolve_model(const std::string& model) {
  return resolve_model(model, hub_cache_from_environment());
}

}  // namespace coppice
