#include "backend/cpu/ops.h"

namespace coppice::cpu {

void accept_path(const AcceptPathArgs&, ThreadPool&) {
  COPPICE_CHECK(false);
}
void move_kv(const MoveKvArgs&, ThreadPool&) {
  COPPICE_CHECK(false);
}

}  // namespace coppice::cpu
