// A text that remembers which of its bytes the chat template wrote itself. Only there may control
// tokens be recognised: whatever came from a request stays plain text, however it was moved about.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace coppice {

class MarkedText {
 public:
  // Half-open byte range written by the template.
  struct Range {
    std::size_t begin, end;
    friend bool operator==(const Range&, const Range&) = default;
  };

  MarkedText() = default;
  MarkedText(std::string text, bool trusted);

  const std::string& text() const { return text_; }
  std::size_t size() const { return text_.size(); }
  bool empty() const { return text_.empty(); }
  // Ascending, disjoint, not touching each other.
  const std::vector<Range>& trusted() const { return trusted_; }
  // Whether the template wrote every byte.
  bool all_trusted() const;

  void append(const MarkedText& other);
  void append(std::string_view text, bool trusted);
  MarkedText substring(std::size_t begin, std::size_t end) const;

 private:
  std::string text_;
  std::vector<Range> trusted_;
};

}  // namespace coppice
