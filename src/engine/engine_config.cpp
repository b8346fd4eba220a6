#include "engine/engine_config.h"

#include "base/error.h"
#include "engine/metrics.h"
#include "engine/request.h"

namespace coppice {

SpeculativeMethod parse_speculative_method(const std::string& name) {
  if (name == "none" || name == "off") return SpeculativeMethod::kNone;
  if (name == "chain" || name == "dflash") return SpeculativeMethod::kChain;
  if (name == "ddtree") return SpeculativeMethod::kDdtree;
  if (name == "ngram") return SpeculativeMethod::kNgram;
  throw Error(ErrorKind::kInvalidArgument, "speculative method is '" + name +
                                               "': must be none, chain (dflash), ddtree or ngram");
}

const char* name_of(SpeculativeMethod method) {
  switch (method) {
    case SpeculativeMethod::kNone:
      return "none";
    case SpeculativeMethod::kChain:
      return "chain";
    case SpeculativeMethod::kDdtree:
      return "ddtree";
    case SpeculativeMethod::kNgram:
      return "ngram";
  }
  return "?";
}

const char* name_of(EndReason reason) {
  switch (reason) {
    case EndReason::kNone:
      return "";
    case EndReason::kStop:
      return "stop";
    case EndReason::kLength:
      return "length";
    case EndReason::kAborted:
      return "abort";
    case EndReason::kError:
      return "error";
  }
  return "?";
}

}  // namespace coppice
