#pragma once

#include "backend/trace/forwarding_backend.h"

namespace coppice::testing {

using ForwardingBackend = coppice::ForwardingBackend;

}  // namespace coppice::testing
