// GET /openapi.json: what clients and fuzzers may send.
#pragma once

#include <string>
#include <vector>

#include "io/json.h"

namespace coppice {

// route_names: "POST /path", as HttpRouter gives them.
Json openapi_document(const std::vector<std::string>& route_names, const std::string& version);

}  // namespace coppice
