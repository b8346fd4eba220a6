// A model's chat template: messages and tools to the prompt text, with the parts that the template
// wrote told apart from what the request brought (text/marked_text.h).
#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <string_view>

#include "io/json.h"
#include "text/jinja_builtins.h"
#include "text/marked_text.h"

namespace coppice {

// One conversation, in OpenAI's form.
struct ChatInput {
  Json messages;  // array of {role, content, ...}
  Json tools;     // array, or null
  // chat_template_kwargs: further template variables. `thinking` and `enable_thinking` stand for
  // each other; "false", "0", 0 and the like are false; null is as if absent.
  Json kwargs;
  bool add_generation_prompt = true;
  std::tm now{};  // what strftime_now prints
};

// Immutable and thread-safe.
class ChatTemplate {
 public:
  // Special token texts the template may name (bos_token ...).
  struct Tokens {
    std::string bos, eos, pad, unk;
  };

  // `source` names the template in errors. Throws as parse_jinja does.
  ChatTemplate(std::string_view text, std::string_view source, Tokens tokens = {},
               const JinjaLimits& limits = {});
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // The template of a model folder: chat_template.jinja, else chat_template in
  // tokenizer_config.json (a string, or a list with one named "default"). Throws kNotFound.
  static ChatTemplate from_folder(const std::string& folder);

  // The template that a file holds. Throws kBadFile for what is none, beside the constructor's.
  static ChatTemplate from_file_text(std::string_view text, const std::string& path, Tokens tokens);

  // Throws Error(kInvalidArgument) naming the template, the line and the cause.
  MarkedText render(const ChatInput& input) const;

 private:
  struct Parsed;
  Json normalized_message(const Json& message) const;
  Json normalized_tool_calls(const Json& calls) const;

  std::unique_ptr<const Parsed> parsed_;
};

}  // namespace coppice
