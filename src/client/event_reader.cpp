#include "client/event_reader.h"

namespace coppice {

void EventReader::add(std::string_view piece,
                      const std::function<void(std::string_view)>& on_event) {
  while (!piece.empty()) {
    const std::size_t end = piece.find('\n');
    line_ += piece.substr(0, end);
    if (end == std::string_view::npos) return;
    piece.remove_prefix(end + 1);
    if (line_.ends_with('\r')) line_.pop_back();
    take_line(line_, on_event);
    line_.clear();
  }
}

void EventReader::take_line(std::string_view line,
                            const std::function<void(std::string_view)>& on_event) {
  if (line.empty()) {
    if (has_data_) on_event(data_);
    data_.clear();
    has_data_ = false;
    return;
  }
  if (!line.starts_with("data:")) return;
  line.remove_prefix(5);
  if (line.starts_with(' ')) line.remove_prefix(1);
  if (has_data_) data_ += '\n';
  data_ += line;
  has_data_ = true;
}

}  // namespace coppice
