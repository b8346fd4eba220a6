// What writers of model folders share.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace coppice {

// Makes the folder; throws kInvalidArgument if it cannot, or if there is something in it.
void prepare_destination(const std::filesystem::path& destination);

// Copies every file that is neither a weight nor an index nor config.json: tokenizer, templates and
// the like.
void copy_small_files(const std::filesystem::path& source,
                      const std::filesystem::path& destination);

// "model-00002-of-00017.safetensors" for shard 1 of 17.
std::string shard_name(std::size_t shard, std::size_t count);

}  // namespace coppice
