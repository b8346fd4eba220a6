// Moving registers between warpgroups of a block (sm_90a and later).
#pragma once

namespace coppice::kernels {

// This warpgroup keeps `kCount` registers a thread and returns the rest to the block.
template <int kCount>
__device__ inline void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

// This warpgroup waits until it can have `kCount` registers a thread.
template <int kCount>
__device__ inline void acquire_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace coppice::kernels
