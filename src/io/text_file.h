// A file's whole text, for what a flag names.
#pragma once

#include <string>

namespace coppice {

// `name`: the flag and path, or the path, for messages. Pipes are read to their end. Throws
// Error(kNotFound) where nothing can be opened, kBadFile for a folder or a failing read.
std::string read_text_file(const std::string& path, const std::string& name);

}  // namespace coppice
