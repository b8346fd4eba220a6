#include "text/marked_text.h"

#include <algorithm>

#include "base/check.h"

namespace coppice {

MarkedText::MarkedText(std::string text, bool trusted) : text_(std::move(text)) {
  if (trusted && !text_.empty()) trusted_.push_back({0, text_.size()});
}

bool MarkedText::all_trusted() const {
  return text_.empty() || (trusted_.size() == 1 && trusted_[0] == Range{0, text_.size()});
}

void MarkedText::append(const MarkedText& other) {
  const std::size_t base = text_.size();
  for (const Range& range : other.trusted_) {
    const Range moved{base + range.begin, base + range.end};
    if (!trusted_.empty() && trusted_.back().end == moved.begin) {
      trusted_.back().end = moved.end;
    } else {
      trusted_.push_back(moved);
    }
  }
  text_ += other.text_;
}

void MarkedText::append(std::string_view text, bool trusted) {
  if (text.empty()) return;
  const std::size_t base = text_.size();
  text_ += text;
  if (!trusted) return;
  if (!trusted_.empty() && trusted_.back().end == base) {
    trusted_.back().end = text_.size();
  } else {
    trusted_.push_back({base, text_.size()});
  }
}

MarkedText MarkedText::substring(std::size_t begin, std::size_t end) const {
  COPPICE_CHECK(begin <= end && end <= text_.size(), begin, " ", end);
  MarkedText out;
  out.text_ = text_.substr(begin, end - begin);
  for (const Range& range : trusted_) {
    const std::size_t from = std::max(range.begin, begin), to = std::min(range.end, end);
    if (from < to) out.trusted_.push_back({from - begin, to - begin});
  }
  return out;
}

}  // namespace coppice
