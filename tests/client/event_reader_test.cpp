#include "client/event_reader.h"

#include <gtest/gtest.h>

#include <vector>

namespace coppice {
namespace {

const std::string kStream =
    ": ping\n\ndata: {\"a\": 1}\n\nevent: x\r\ndata: first\r\ndata:second\r\n\r\ndata: [DONE]\n\n"
    "data: not ended";

std::vector<std::string> read_in_pieces(std::size_t size) {
  EventReader reader;
  std::vector<std::string> events;
  for (std::size_t at = 0; at < kStream.size(); at += size)
    reader.add(std::string_view(kStream).substr(at, size),
               [&](std::string_view data) { events.emplace_back(data); });
  return events;
}

TEST(EventReaderTest, AnyCutGivesTheSameEvents) {
  const std::vector<std::string> expected = {"{\"a\": 1}", "first\nsecond", "[DONE]"};
  for (std::size_t size = 1; size <= kStream.size(); ++size)
    EXPECT_EQ(read_in_pieces(size), expected) << size;
}

}  // namespace
}  // namespace coppice
