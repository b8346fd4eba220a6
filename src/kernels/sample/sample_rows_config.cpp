#include "kernels/sample/sample_rows_config.h"

namespace coppice::kernels {

size_t sample_rows_marks_bytes(int vocab_size) {
  return (static_cast<size_t>(vocab_size) + 127) / 128 * 16;
}

}  // namespace coppice::kernels
