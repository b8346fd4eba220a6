// Ops in which tensor-parallel ranks meet. What exceeds a slot of the exchange goes in several
// calls: elements and rows are independent of each other.
#include <algorithm>

#include "backend/cuda/cuda_backend_impl.h"
#include "backend/cuda/kernel_args.h"
#include "kernels/comm/peer_exchange.h"
#include "kernels/comm/peer_norm.h"

namespace coppice {

void CudaBackend::all_reduce(const AllReduceArgs& args) {
  if (peers_ == nullptr) return;
  COPPICE_CHECK(args.x.is_dense() && args.x.dtype() == DType::kBF16, args.x.describe());
  const std::int64_t count = args.x.num_elements();
  const std::int64_t most = kernels::peer_sum_max_elements(peers_->group().num_ranks);
  for (std::int64_t begin = 0; begin < count; begin += most)
    cuda_check(kernels::peer_sum(peers_->group(),
                                 {.x = args.x.data<bf16>() + begin,
                                  .num_elements = std::min(most, count - begin)},
                                 stream()),
               "all_reduce");
}

void CudaBackend::sum_add_rms_norm(const AddRmsNormArgs& args) {
  const bool fits =
      peers_ != nullptr &&
      kernels::peer_norm_fits(peers_->group().num_ranks, args.out.shape(0), args.out.shape(1));
  if (!fits) return Backend::sum_add_rms_norm(args);
  cuda_check(kernels::peer_norm(peers_->group(), norm_params(args), stream()), "sum_add_rms_norm");
}

void CudaBackend::all_gather(const AllGatherArgs& args) {
  COPPICE_CHECK(args.x.is_dense() && args.out.is_dense());
  if (peers_ == nullptr) {
    COPPICE_CHECK_EQ(args.out.num_bytes(), args.x.num_bytes());
    cuda_check(
        cudaMemcpyAsync(args.out.raw(), args.x.raw(), static_cast<std::size_t>(args.x.num_bytes()),
                        cudaMemcpyDeviceToDevice, stream()),
        "all_gather");
    return;
  }
  const std::int64_t rows = args.x.shape(0), columns = args.x.row_size();
  const std::int64_t most = kernels::kPeerSlotBytes / (columns * std::int64_t{sizeof(float)});
  COPPICE_CHECK(columns % 4 == 0 && most > 0, columns, " columns");
  for (std::int64_t begin = 0; begin < rows; begin += most)
    cuda_check(kernels::peer_gather(peers_->group(),
                                    {.x = args.x.row<float>(begin),
                                     .out = args.out.row<float>(begin),
                                     .num_rows = std::min(most, rows - begin),
                                     .columns = columns},
                                    stream()),
               "all_gather");
}

}  // namespace coppice
