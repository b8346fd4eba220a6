// The relation that governs decoding (docs/bandwidth.md):
//
//   tokens/s = committed tokens / (bytes(rows) / (bandwidth x efficiency) + fixed)
//
// where bytes(rows) grows with the union of the experts that the rows of a step choose.
#pragma once

namespace coppice {

struct Decoding {
  double tokens = 1;          // committed by one step of one stream
  double bytes = 0;           // read by one GPU for the step
  double bandwidth_tb_s = 1;  // of one GPU, data sheet
  double efficiency = 1;      // reached over data sheet
  double fixed_ms = 0;        // launches, collectives, host
};

constexpr double memory_ms(const Decoding& d) {
  return d.bytes / (d.bandwidth_tb_s * d.efficiency) * 1e-9;
}
constexpr double step_ms(const Decoding& d) {
  return memory_ms(d) + d.fixed_ms;
}
constexpr double tokens_per_second(const Decoding& d) {
  return d.tokens / step_ms(d) * 1e3;
}

// What a measured time says of the bandwidth.
constexpr double gb_per_second(double bytes, double ms) {
  return bytes / ms * 1e-6;
}

}  // namespace coppice
