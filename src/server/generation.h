// One HTTP request's choices on their way through the engine: submits them all, turns their tokens
// into text, cancels them when the client leaves, counts usage.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/engine_loop.h"
#include "server/grammar_service.h"
#include "server/http_server.h"
#include "server/output_text.h"
#include "server/output_thread.h"
#include "server/served_model.h"
#include "server/server_metrics.h"

namespace coppice {

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;  // over all choices
  std::int64_t cached_tokens = 0;
  std::int64_t reasoning_tokens = 0;
};
Json usage_json(const Usage& usage);

// What the engine made of the whole request, llama.cpp's names.
Json timings_json(const RequestStats& stats);

struct GenerationChoice {
  Request request;
  OutputTextOptions text;
  std::optional<GrammarRequest> grammar = {};  // the same for all choices of a request
};

// Called on the thread of outputs, one call at a time; on_failure also on another, before anything
// else was called. After on_end or on_failure nothing more comes.
class GenerationClient {
 public:
  virtual ~GenerationClient() = default;
  virtual void on_step(std::size_t choice, const OutputStep& step, const RequestStats& stats) = 0;
  // All choices have ended.
  virtual void on_end() = 0;
  virtual void on_failure(const ApiError& error) = 0;
};

// What generating needs from the server.
struct GenerationContext {
  EngineLoop* loop = nullptr;
  OutputThread* outputs = nullptr;
  ServerMetrics* metrics = nullptr;
  GrammarService* grammars = nullptr;
  std::shared_ptr<const ServedModel> model;
};

// Throws ApiError when the queue does not take the request; where a grammar must be compiled first
// that and the grammar's faults come through on_failure. Cancels all when the client leaves.
void generate(const GenerationContext& context, std::vector<GenerationChoice> choices,
              std::shared_ptr<GenerationClient> client, HttpResponder& responder);

}  // namespace coppice
