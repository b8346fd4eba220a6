// POST /v1/completions: text or token ids in, text out.
#pragma once

#include <memory>

#include "server/chat_api.h"

namespace coppice {

void completions(const ApiContext& context, const HttpRequest& request,
                 const std::shared_ptr<HttpResponder>& responder);

}  // namespace coppice
