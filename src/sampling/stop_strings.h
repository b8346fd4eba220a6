// Finds stop strings in text that arrives in fragments, and holds back what may yet become one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace coppice {

class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stop) : stop_(std::move(stop)) {}

  struct Result {
    std::string text;      // safe to show now
    bool stopped = false;  // a stop string was completed; text ends before it
    std::string matched;   // the stop string
  };

  // The match that is complete first wins, of two that end together the longer: so the result does
  // not depend on how the text was cut. Nothing may follow a stop.
  Result push(std::string_view fragment);
  // The end of the stream: what was held back.
  std::string flush();

 private:
  std::vector<std::string> stop_;
  std::string held_;  // a suffix of the text so far that begins a stop string
};

}  // namespace coppice
