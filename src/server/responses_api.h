// POST /v1/responses: OpenAI's newer API over the same chat. Nothing is stored.
#pragma once

#include <memory>

#include "server/chat_api.h"

namespace coppice {

void responses(const ApiContext& context, const HttpRequest& request,
               const std::shared_ptr<HttpResponder>& responder);

}  // namespace coppice
