// What the HTTP side knows of the model: names, tokenizer, chat template, limits, defaults.
// Immutable once the engine runs; shared by all threads.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "sampling/sampling_params.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "text/tool_parser.h"

namespace coppice {

struct ServedModelOptions {
  std::vector<std::string> names;            // the first answers requests; none: the model as given
  std::string model;                         // as the user gave it
  std::string chat_template;                 // file or text instead of the model's own
  std::string tool_call_parser = "auto";     // auto, none or one that tool_format_of knows
  std::string reasoning_parser = "auto";     // auto, kimi_k2, none; further names of the same rules
  std::string generation_config = "auto";    // auto: the model's defaults; vllm: none
  std::string override_generation_config;    // JSON over it
  std::string default_chat_template_kwargs;  // JSON under each request's
  bool trust_request_chat_template = false;
};

struct ServedModel {
  std::vector<std::string> names;
  std::string root;  // folder or file
  Tokenizer tokenizer;
  std::optional<ChatTemplate> chat_template;
  SamplingParams defaults;  // of requests that do not say
  std::optional<std::int64_t> default_max_tokens;
  Json template_kwargs;  // object
  ToolSyntax tools;
  bool parse_reasoning = false;
  bool trust_request_chat_template = false;
  std::time_t created = 0;

  // The engine's.
  std::int64_t vocab_size = 0;
  std::int64_t max_model_len = 0;    // prompt and output tokens
  std::int64_t max_request_len = 0;  // what the cache holds, at most max_model_len
  std::string eos_text;              // of the first stop id
  std::string description;

  const std::string& name() const { return names.front(); }
  bool answers_to(const std::string& asked) const;

  // Everything but the engine's part. `path` is the resolved folder or file. Throws Error naming
  // the flag or file.
  static std::unique_ptr<ServedModel> load(const ServedModelOptions& options,
                                           const std::string& path);
  void take_limits(const Engine& engine);
};

// Null until loaded.
class ServedModelSlot {
 public:
  void set(std::shared_ptr<const ServedModel> model) {
    const std::lock_guard lock(mutex_);
    model_ = std::move(model);
  }
  std::shared_ptr<const ServedModel> get() const {
    const std::lock_guard lock(mutex_);
    return model_;
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const ServedModel> model_;
};

}  // namespace coppice
