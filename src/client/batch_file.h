// OpenAI's batch files: one request a line in, one answer a line out.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "client/http_client.h"

namespace coppice {

struct BatchLine {
  std::string custom_id;
  std::string url;   // "/v1/chat/completions"
  std::string body;  // JSON text
};

// Throws Error(kInvalidArgument) naming the line for anything that is no POST request with a
// custom_id of its own. Empty lines are skipped.
std::vector<BatchLine> read_batch(std::string_view text, const std::string& source);

struct BatchCounts {
  std::int64_t answered = 0, failed = 0;
};

// Posts all of them, at most max_concurrency at once; answers leave in the order of the lines.
// Refusals for lack of room (429, 503) are sent again after their Retry-After.
BatchCounts run_batch_lines(HttpClient& client, const std::vector<BatchLine>& lines,
                            std::int64_t max_concurrency,
                            const std::function<void(const std::string& line)>& write);

}  // namespace coppice
