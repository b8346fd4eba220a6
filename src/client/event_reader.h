// Server-sent events out of the pieces in which they arrive.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace coppice {

class EventReader {
 public:
  // Calls back with the data of every event that is complete now ("[DONE]" too). Comments, such as
  // keep-alives, and other fields are skipped; several data lines are joined by newlines.
  void add(std::string_view piece, const std::function<void(std::string_view data)>& on_event);

 private:
  void take_line(std::string_view line, const std::function<void(std::string_view)>& on_event);

  std::string line_;  // not yet ended
  std::string data_;
  bool has_data_ = false;
};

}  // namespace coppice
