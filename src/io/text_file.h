// A file's whole text, read or written: for what a flag names.
#pragma once

#include <string>
#include <string_view>

namespace coppice {

// `name`: the flag and path, or the path, for messages. Pipes are read to their end. Throws
// Error(kNotFound) where nothing can be opened, kBadFile for a folder or a failing read.
std::string read_text_file(const std::string& path, const std::string& name);

// In place of what the file held. Throws Error(kUnavailable).
void write_text_file(const std::string& path, std::string_view text, const std::string& name);

}  // namespace coppice
