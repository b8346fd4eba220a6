#include "client/batch_file.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <set>

#include "io/json_field.h"

namespace coppice {
namespace {

constexpr int kMaxAttempts = 20;

std::string answer_line(const BatchLine& line, std::size_t index, const HttpReply& reply) {
  const std::string number = std::to_string(index);
  Json body;
  try {
    body = parse_json(reply.body, "answer");
  } catch (const Error&) {
    body = reply.body;
  }
  Json error;
  if (!reply.error.empty()) {
    error = Json::object({{"code", "no_answer"}, {"message", reply.error}});
  } else if (!reply.ok()) {
    error = body;
  }
  return write_json(Json::object({{"id", "batch_req_" + number},
                                  {"custom_id", line.custom_id},
                                  {"response", Json::object({{"status_code", reply.status},
                                                             {"request_id", "batch-" + number},
                                                             {"body", std::move(body)}})},
                                  {"error", std::move(error)}}));
}

class BatchRun {
 public:
  BatchRun(HttpClient& client, const std::vector<BatchLine>& lines,
           const std::function<void(const std::string&)>& write)
      : client_(client), lines_(lines), write_(write), answers_(lines.size()) {}

  BatchCounts run(std::int64_t max_concurrency) {
    for (std::int64_t i = 0; i < max_concurrency; ++i) send_next();
    client_.run();
    return counts_;
  }

 private:
  void send_next() {
    if (next_ < lines_.size()) send(next_++, 1);
  }

  void send(std::size_t index, int attempt) {
    client_.start({.method = "POST", .path = lines_[index].url, .body = lines_[index].body}, {},
                  [this, index, attempt](const HttpReply& reply) { take(index, attempt, reply); });
  }

  void take(std::size_t index, int attempt, const HttpReply& reply) {
    if ((reply.status == 429 || reply.status == 503) && attempt < kMaxAttempts) {
      const auto wait = reply.headers.find("retry-after");
      const int seconds = wait == reply.headers.end() ? 1 : std::atoi(wait->second.c_str());
      client_.after(std::chrono::seconds(std::clamp(seconds, 1, 30)),
                    [this, index, attempt] { send(index, attempt + 1); });
      return;
    }
    ++(reply.ok() ? counts_.answered : counts_.failed);
    answers_[index] = answer_line(lines_[index], index, reply);
    for (; num_written_ < answers_.size() && answers_[num_written_]; ++num_written_) {
      write_(*answers_[num_written_]);
      answers_[num_written_]->clear();
    }
    send_next();
  }

  HttpClient& client_;
  const std::vector<BatchLine>& lines_;
  const std::function<void(const std::string&)>& write_;
  std::vector<std::optional<std::string>> answers_;
  std::size_t next_ = 0, num_written_ = 0;
  BatchCounts counts_;
};

}  // namespace

std::vector<BatchLine> read_batch(std::string_view text, const std::string& source) {
  std::vector<BatchLine> lines;
  std::set<std::string> ids;
  for (int number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string name = source + " line " + std::to_string(number);
    const Json json = parse_json(line, name, {.error_kind = ErrorKind::kInvalidArgument});
    const JsonField field(json, name, ErrorKind::kInvalidArgument);
    field.allow_only({"custom_id", "method", "url", "body"});
    if (field.get<std::string>("method", "POST") != "POST") field.at("method").fail("must be POST");
    BatchLine entry{field.get<std::string>("custom_id"), field.get<std::string>("url"),
                    write_json(field.at("body").value())};
    if (!entry.url.starts_with("/v1/")) field.at("url").fail("must begin with /v1/");
    if (std::any_of(entry.url.begin(), entry.url.end(), [](char c) { return c <= ' ' || c > '~'; }))
      field.at("url").fail(
          "holds a character that no path has");  // it would end the request's line
    if (const Json* stream = field.at("body").value().find("stream");
        stream != nullptr && stream->is_bool() && stream->as_bool())
      field.at("body").at("stream").fail("a batch's answers are whole");
    if (!ids.insert(entry.custom_id).second) field.at("custom_id").fail("was used before");
    lines.push_back(std::move(entry));
  }
  return lines;
}

BatchCounts run_batch_lines(HttpClient& client, const std::vector<BatchLine>& lines,
                            std::int64_t max_concurrency,
                            const std::function<void(const std::string&)>& write) {
  BatchRun run(client, lines, write);
  return run.run(max_concurrency);
}

}  // namespace coppice
