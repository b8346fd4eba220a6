#include "client/load_generator.h"

#include <chrono>
#include <cmath>
#include <memory>
#include <random>

#include "client/event_reader.h"

namespace coppice {
namespace {

using SteadyTime = std::chrono::steady_clock;

double seconds_since(SteadyTime::time_point start) {
  return std::chrono::duration<double>(SteadyTime::now() - start).count();
}

std::string request_body(const BenchPrompt& prompt, const LoadOptions& options) {
  Json body = Json::object();
  if (!options.model.empty()) body["model"] = options.model;
  if (options.chat) {
    body["messages"] = Json::array({Json::object({{"role", "user"}, {"content", prompt.text}})});
    body["max_completion_tokens"] = prompt.output_len;
  } else {
    body["prompt"] = prompt.text;
    body["max_tokens"] = prompt.output_len;
  }
  body["temperature"] = 0.0;
  body["stream"] = true;
  body["stream_options"] = Json::object({{"include_usage", true}});
  if (options.ignore_eos) body["ignore_eos"] = true;
  if (options.extra_body.is_object())
    for (const auto& [key, value] : options.extra_body.as_object()) body[key] = value;
  return write_json(body);
}

// Text of the first choice: of a completion's chunk or of a chat's.
std::string text_of(const Json& choice) {
  if (const Json* text = choice.find("text"); text != nullptr && text->is_string())
    return text->as_string();
  const Json* delta = choice.find("delta");
  if (delta == nullptr) return "";
  for (const char* key : {"content", "reasoning"})
    if (const Json* text = delta->find(key); text != nullptr && text->is_string())
      return text->as_string();
  return "";
}

bool brings_tokens(const Json& choice) {
  const Json* delta = choice.find("delta");
  const Json* calls = delta == nullptr ? nullptr : delta->find("tool_calls");
  return !text_of(choice).empty() || (calls != nullptr && calls->size() > 0);
}

// One request under way.
class Stream {
 public:
  Stream(LoadResult& result, SteadyTime::time_point load_start)
      : result_(result), sent_(SteadyTime::now()) {
    result_.start_s = std::chrono::duration<double>(sent_ - load_start).count();
  }

  void add(std::string_view piece) {
    reader_.add(piece, [this](std::string_view data) { take_event(data); });
  }
  void end(const HttpReply& reply) {
    if (!reply.error.empty()) fail(reply.error);
    if (reply.status != 0 && reply.status != 200)
      fail("HTTP " + std::to_string(reply.status) + ": " + reply.body.substr(0, 300));
    if (!done_) fail("the stream ended without [DONE]");
    if (!has_choices_) fail("the stream had no choices");
    if (!has_first_) result_.ttft_s = result_.latency_s = last_choice_s_;
    result_.success = result_.error.empty();
  }

 private:
  void fail(const std::string& cause) {
    if (result_.error.empty()) result_.error = cause;
  }

  void take_event(std::string_view data) {
    if (data == "[DONE]") {
      done_ = true;
      return;
    }
    try {
      const Json event = parse_json(data, "event");
      if (event.find("error") != nullptr) return fail(std::string(data));
      take_choices(event);
      if (const Json* usage = event.find("usage"); usage != nullptr && usage->is_object())
        if (const Json* count = usage->find("completion_tokens"); count && count->is_integer())
          result_.output_len = count->as_int();
    } catch (const Error& error) {
      fail(error.what());
    }
  }

  void take_choices(const Json& event) {
    const Json* choices = event.find("choices");
    if (choices == nullptr || choices->size() == 0) return;
    const double now = last_choice_s_ = seconds_since(sent_);
    has_choices_ = true;
    // A chunk that brings a role or the finish reason alone is no token.
    if (!brings_tokens(choices->as_array()[0])) return;
    if (!has_first_) {
      result_.ttft_s = now;
      has_first_ = true;
    } else {
      result_.itl_s.push_back(now - result_.latency_s);
    }
    result_.latency_s = now;
    result_.text += text_of(choices->as_array()[0]);
  }

  LoadResult& result_;
  const SteadyTime::time_point sent_;
  EventReader reader_;
  double last_choice_s_ = 0;
  bool has_choices_ = false, has_first_ = false, done_ = false;
};

// Lives on the stack of run_load, which waits for all callbacks.
class Load {
 public:
  Load(HttpClient& client, const std::vector<BenchPrompt>& prompts, const LoadOptions& options,
       const std::function<void(std::int64_t)>& on_done)
      : client_(client),
        prompts_(prompts),
        options_(options),
        on_done_(on_done),
        results_(prompts.size()) {}

  std::vector<LoadResult> run(double& duration_s) {
    const std::vector<double> times = arrival_times(std::ssize(prompts_), options_.request_rate,
                                                    options_.burstiness, options_.seed);
    for (std::size_t i = 0; i < times.size(); ++i) {
      const auto delay = std::chrono::duration<double>(times[i]);
      if (times[i] <= 0) {
        arrive(i);
      } else {
        client_.after(std::chrono::duration_cast<std::chrono::nanoseconds>(delay),
                      [this, i] { arrive(i); });
      }
    }
    client_.run();
    duration_s = seconds_since(start_);
    return std::move(results_);
  }

 private:
  // Requests above the limit wait their turn, in order of arrival.
  void arrive(std::size_t index) {
    waiting_.push_back(index);
    start_waiting();
  }

  void start_waiting() {
    while (next_ < waiting_.size() &&
           (options_.max_concurrency <= 0 || num_running_ < options_.max_concurrency)) {
      send(waiting_[next_++]);
    }
  }

  void send(std::size_t index) {
    ++num_running_;
    LoadResult& result = results_[index];
    result.prompt_len = prompts_[index].num_tokens;
    const auto stream = std::make_shared<Stream>(result, start_);
    std::string path = options_.endpoint;
    if (path.empty()) path = options_.chat ? "/v1/chat/completions" : "/v1/completions";
    client_.start(
        {.method = "POST",
         .path = std::move(path),
         .body = request_body(prompts_[index], options_),
         .timeout = options_.timeout},
        [stream](std::string_view piece) {
          stream->add(piece);
          return true;
        },
        [this, stream](const HttpReply& reply) {
          stream->end(reply);
          --num_running_;
          ++num_done_;
          if (on_done_) on_done_(num_done_);
          start_waiting();
        });
  }

  HttpClient& client_;
  const std::vector<BenchPrompt>& prompts_;
  const LoadOptions& options_;
  const std::function<void(std::int64_t)>& on_done_;
  std::vector<LoadResult> results_;
  const SteadyTime::time_point start_ = SteadyTime::now();
  std::vector<std::size_t> waiting_;
  std::size_t next_ = 0;  // in waiting_
  std::int64_t num_running_ = 0, num_done_ = 0;
};

}  // namespace

std::vector<double> arrival_times(std::int64_t count, double rate, double burstiness,
                                  std::uint64_t seed) {
  if (!(rate > 0)) throw Error(ErrorKind::kInvalidArgument, "--request-rate: must be above 0");
  if (!(burstiness > 0)) throw Error(ErrorKind::kInvalidArgument, "--burstiness: must be above 0");
  std::vector<double> times(static_cast<std::size_t>(count), 0.0);
  if (std::isinf(rate) || count == 0) return times;
  std::mt19937_64 engine(seed);
  std::gamma_distribution<double> interval(burstiness, 1 / (rate * burstiness));
  double now = 0;
  for (double& time : times) time = now += interval(engine);
  const double stretch = static_cast<double>(count) / rate / now;
  for (double& time : times) time *= stretch;
  return times;
}

std::vector<LoadResult> run_load(HttpClient& client, const std::vector<BenchPrompt>& prompts,
                                 const LoadOptions& options, double& duration_s,
                                 const std::function<void(std::int64_t)>& on_done) {
  Load load(client, prompts, options, on_done);
  return load.run(duration_s);
}

}  // namespace coppice
