// A GPU after a fault that its driver does not forget: from a moment on every call fails.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "backend/trace/forwarding_backend.h"
#include "base/error.h"

namespace coppice::testing {

class LostBackend : public ForwardingBackend {
 public:
  // `lost` outlives it; set from any thread.
  LostBackend(std::unique_ptr<Backend> inner, const std::atomic<bool>& lost)
      : ForwardingBackend(std::move(inner)), lost_(lost) {}

  void upload(const Tensor& dst, const void* src) override {
    check();
    ForwardingBackend::upload(dst, src);
  }
  void embed(const EmbedArgs& args) override {
    check();
    ForwardingBackend::embed(args);
  }
  void synchronize() override {
    check();
    ForwardingBackend::synchronize();
  }

 private:
  void check() const {
    if (lost_) throw Error(ErrorKind::kUnavailable, "device lost");
  }

  const std::atomic<bool>& lost_;
};

}  // namespace coppice::testing
