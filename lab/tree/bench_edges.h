#pragma once

namespace lab {

// Cost of graph edges between one-block kernels: plain, programmatic, through IF and SWITCH nodes.
void bench_edges();

// Cycles of warp reductions, shuffles, votes and shared memory in a dependent chain.
void bench_latency();

}  // namespace lab
