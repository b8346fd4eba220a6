#include "server/output_thread.h"

#include <iterator>
#include <map>
#include <utility>

#include "base/thread_name.h"

namespace coppice {
namespace {

template <typename T>
void move_behind(std::vector<T>& from, std::vector<T>& to) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

EmittedOutput::EmittedOutput(const RequestOutput& output, std::int64_t now_ns)
    : id(output.id),
      token_ids(output.token_ids.begin(), output.token_ids.end()),
      logprobs(output.logprobs.begin(), output.logprobs.end()),
      prompt_logprobs(output.prompt_logprobs.begin(), output.prompt_logprobs.end()),
      end_reason(output.end_reason),
      stop_token_id(output.stop_token_id),
      stats(*output.stats),
      emitted_ns(now_ns) {}

void EmittedOutput::append(EmittedOutput&& next) {
  move_behind(next.token_ids, token_ids);
  move_behind(next.logprobs, logprobs);
  move_behind(next.prompt_logprobs, prompt_logprobs);
  end_reason = next.end_reason;
  stop_token_id = next.stop_token_id;
  stats = next.stats;
  emitted_ns = next.emitted_ns;
}

RequestOutput EmittedOutput::view() const {
  return {.id = id,
          .token_ids = token_ids,
          .logprobs = logprobs,
          .prompt_logprobs = prompt_logprobs,
          .end_reason = end_reason,
          .stop_token_id = stop_token_id,
          .stats = &stats};
}

OutputThread::OutputThread() {
  thread_ = std::thread([this] {
    set_thread_name("output");
    work();
  });
}

OutputThread::~OutputThread() {
  stop();
}

void OutputThread::post(std::shared_ptr<OutputReceiver> receiver, std::size_t choice,
                        EmittedOutput output) {
  post({.receiver = std::move(receiver),
        .choice = choice,
        .output = std::move(output),
        .failure = {}});
}

void OutputThread::post_failure(std::shared_ptr<OutputReceiver> receiver, const ApiError& error) {
  post({.receiver = std::move(receiver), .choice = 0, .output = {}, .failure = error});
}

void OutputThread::post(Item item) {
  std::vector<Item> own;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_)
      own.push_back(std::move(item));
    else
      waiting_.push_back(std::move(item));
  }
  if (own.empty()) return wake_.notify_one();
  deliver(own);
}

void OutputThread::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void OutputThread::work() {
  std::vector<Item> items;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) {
        stopped_ = true;
        return;
      }
      items.swap(waiting_);
    }
    deliver(items);
    items.clear();
  }
}

void OutputThread::deliver(std::vector<Item>& items) {
  // The first item of each choice takes in those that follow it.
  std::map<std::pair<const OutputReceiver*, std::size_t>, EmittedOutput*> firsts;
  for (Item& item : items) {
    if (!item.output) continue;
    item.receiver->observe(item.choice, item.output->emitted_ns,
                           std::ssize(item.output->token_ids));
    const auto [first, is_new] =
        firsts.try_emplace({item.receiver.get(), item.choice}, &*item.output);
    if (is_new) continue;
    first->second->append(std::move(*item.output));
    item.output.reset();
  }
  for (const Item& item : items) {
    if (item.failure) item.receiver->receive_failure(*item.failure);
    if (item.output) item.receiver->receive(item.choice, *item.output);
  }
}

}  // namespace coppice
