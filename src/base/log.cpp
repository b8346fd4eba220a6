#include "base/log.h"

#include <cstdio>
#include <mutex>

namespace coppice {
namespace {

struct LogState {
  std::mutex mutex;
  LogSink sink;
  LogLevel lowest = LogLevel::kInfo;
};

LogState& state() {
  static LogState instance;
  return instance;
}

const char* level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "DEBUG";
    case LogLevel::kInfo:
      return "INFO";
    case LogLevel::kWarning:
      return "WARNING";
    case LogLevel::kError:
      return "ERROR";
  }
  return "?";
}

}  // namespace

void set_log_sink(LogSink sink) {
  std::lock_guard lock(state().mutex);
  state().sink = std::move(sink);
}

void set_log_level(LogLevel lowest) {
  std::lock_guard lock(state().mutex);
  state().lowest = lowest;
}

void log(LogLevel level, std::string_view line) {
  std::lock_guard lock(state().mutex);
  if (level < state().lowest) return;
  if (state().sink) {
    state().sink(level, line);
  } else {
    std::fprintf(stderr, "%s %.*s\n", level_name(level), static_cast<int>(line.size()),
                 line.data());
  }
}

}  // namespace coppice
