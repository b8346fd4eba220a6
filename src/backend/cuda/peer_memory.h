// One rank's side of the memory that the GPUs of a tensor-parallel group write to each other.
#pragma once

#include <cuda_runtime.h>

#include "comm/communicator.h"
#include "kernels/comm/peer_exchange.h"
#include "tensor/buffer.h"

namespace coppice {

// Not thread-safe: used by its rank's thread.
class PeerMemory {
 public:
  // Allocates this rank's part, learns where those of the others are and opens them: all ranks call
  // it together. Throws Error(kUnsupported) when a peer's memory cannot be reached. `communicator`
  // outlives it.
  PeerMemory(Communicator& communicator, int device_index, cudaStream_t stream);

  const kernels::PeerGroup& group() const { return group_; }

  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // Waits until the event has passed. When the group has failed meanwhile, kernels that wait for a
  // peer are told to give up first. Throws Error(kUnavailable) naming the rank.
  void wait_for(cudaEvent_t event);
  // The same for all that the stream was given.
  void synchronize(cudaStream_t stream);
  // Returns when all ranks have called it and none has work under way: to be called before and
  // after what may hold up the driver, such as an allocation, while a kernel waits for its peers.
  void settle(cudaStream_t stream);

 private:
  // Throws if a kernel waited for a peer in vain.
  void check() const;

  Communicator& communicator_;
  Buffer memory_;  // slots, flags, calls
  Buffer words_;   // page-locked: missing, give_up
  kernels::PeerGroup group_{};
  cudaEvent_t event_ = nullptr;  // of synchronize
};

}  // namespace coppice
