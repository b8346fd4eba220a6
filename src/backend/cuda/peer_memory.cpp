#include "backend/cuda/peer_memory.h"

#include <string>
#include <vector>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/cuda_memory.h"
#include "base/error.h"

namespace coppice {
namespace {

constexpr std::int64_t kDeadlineNs = 30'000'000'000;  // as kRankDeadline
constexpr int kQueriesPerCheck = 1000;

// What a rank tells the others.
struct Card {
  std::byte* memory = nullptr;
  int device = 0;
};

void open_peer(int mine, int peer) {
  if (mine == peer) return;  // several ranks on one GPU: tests
  int can_access = 0;
  cuda_check(cudaDeviceCanAccessPeer(&can_access, mine, peer), "peer access");
  if (can_access == 0)
    throw Error(ErrorKind::kUnsupported,
                "cuda: GPU " + std::to_string(mine) + " cannot reach the memory of GPU " +
                    std::to_string(peer) +
                    ": tensor parallel needs NVLink or PCIe peer access between all its GPUs");
  const cudaError_t status = cudaDeviceEnablePeerAccess(peer, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled)
    cudaGetLastError();
  else
    cuda_check(status, "enable peer access");
}

}  // namespace

PeerMemory::PeerMemory(Communicator& communicator, int device_index, cudaStream_t stream)
    : communicator_(communicator) {
  const auto size = static_cast<int>(communicator.size());
  if (size > kernels::kMaxPeers)
    throw Error(ErrorKind::kUnsupported, "tensor_parallel_size is " + std::to_string(size) +
                                             ": at most " + std::to_string(kernels::kMaxPeers) +
                                             " GPUs of one machine");
  const std::size_t data_bytes = kernels::peer_data_bytes(size);
  const std::size_t flag_bytes = kernels::kPeerFlags * sizeof(std::uint32_t);
  memory_ = allocate_device(data_bytes + flag_bytes + kernels::kPeerCounts * sizeof(std::uint32_t),
                            stream);
  words_ = allocate_pinned(2 * sizeof(std::int32_t));
  cuda_check(cudaStreamSynchronize(stream), "clear peer memory");

  const Card mine = {.memory = static_cast<std::byte*>(memory_.data()), .device = device_index};
  std::vector<Card> cards(static_cast<std::size_t>(size));
  communicator.all_gather(std::as_bytes(std::span(&mine, 1)),
                          std::as_writable_bytes(std::span(cards)));
  for (int rank = 0; rank < size; ++rank) {
    const Card& card = cards[static_cast<std::size_t>(rank)];
    open_peer(device_index, card.device);
    group_.data[rank] = card.memory;
    group_.flags[rank] = reinterpret_cast<std::uint32_t*>(card.memory + data_bytes);
  }
  group_.calls = reinterpret_cast<std::uint32_t*>(mine.memory + data_bytes + flag_bytes);
  group_.meetings = group_.calls + kernels::kPeerBlocks;
  group_.broken = group_.meetings + kernels::kPeerBlocks;
  group_.missing = static_cast<std::int32_t*>(words_.data());
  group_.give_up = group_.missing + 1;
  group_.deadline_ns = kDeadlineNs;
  group_.rank = static_cast<int>(communicator.rank());
  group_.num_ranks = size;
  cuda_check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "create event");
  communicator.barrier();  // everybody's peers are open
}

PeerMemory::~PeerMemory() {
  cudaEventDestroy(event_);
}

void PeerMemory::synchronize(cudaStream_t stream) {
  cuda_check(cudaEventRecord(event_, stream), "record event");
  wait_for(event_);
}

void PeerMemory::settle(cudaStream_t stream) {
  synchronize(stream);
  communicator_.barrier();
}

void PeerMemory::wait_for(cudaEvent_t event) {
  cudaError_t status = cudaErrorNotReady;
  for (int queries = 1; (status = cudaEventQuery(event)) == cudaErrorNotReady; ++queries) {
    if (queries % kQueriesPerCheck != 0) continue;
    try {
      communicator_.check();
    } catch (...) {
      static_cast<volatile std::int32_t*>(words_.data())[1] = 1;
      cudaEventSynchronize(event);
      throw;
    }
  }
  cuda_check(status, "wait for ranks");
  check();
}

void PeerMemory::check() const {
  const std::int32_t missing = *group_.missing;
  if (missing != 0)
    throw Error(ErrorKind::kUnavailable, "waited in vain for rank " + std::to_string(missing - 1));
}

}  // namespace coppice
