// Log lines to one process-wide sink (stderr by default). Thread-safe. Not for the hot path.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace coppice {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

using LogSink = std::function<void(LogLevel, std::string_view line)>;

// Replaces the sink; an empty function restores stderr.
void set_log_sink(LogSink sink);
void set_log_level(LogLevel lowest);
void log(LogLevel level, std::string_view line);

inline void log_info(std::string_view line) {
  log(LogLevel::kInfo, line);
}
inline void log_warning(std::string_view line) {
  log(LogLevel::kWarning, line);
}

}  // namespace coppice
