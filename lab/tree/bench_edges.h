#pragma once

namespace lab {

// Cost of graph edges between one-block kernels: plain, programmatic, through IF and SWITCH nodes.
void bench_edges();

}  // namespace lab
