// POST /v1/messages and /v1/messages/count_tokens: Anthropic's API over the same chat.
#pragma once

#include <memory>

#include "server/chat_api.h"

namespace coppice {

// Never throws: errors have Anthropic's shape.
void messages(const ApiContext& context, const HttpRequest& request,
              const std::shared_ptr<HttpResponder>& responder);
void count_message_tokens(const ApiContext& context, const HttpRequest& request,
                          HttpResponder& responder);

}  // namespace coppice
