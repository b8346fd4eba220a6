#include "backend/cpu/packed_matrix.h"

#include <algorithm>
#include <cstring>

#include "backend/dequantize.h"

namespace coppice::cpu {
namespace {

using simd::kBlockRows;
using simd::Layout;

Layout layout_of(std::span<const HostMatrix> parts) {
  for (const HostMatrix& part : parts)
    if (part.format != parts[0].format) return Layout::kF32;
  switch (parts[0].format) {
    case WeightFormat::kF16:
      return Layout::kF16;
    case WeightFormat::kBF16:
      return Layout::kBF16;
    case WeightFormat::kInt4Group32:
      return Layout::kInt4;
    case WeightFormat::kQ4_0:
      return Layout::kQ4_0;
    case WeightFormat::kQ4_1:
      return Layout::kQ4_1;
    case WeightFormat::kQ8_0:
      return Layout::kQ8_0;
    case WeightFormat::kF32:
    case WeightFormat::kF8Block128:
      break;
  }
  return Layout::kF32;
}

simd::GroupOffsets offsets_of(Layout layout) {
  if (layout == Layout::kQ8_0) return simd::kByteGroups;
  return layout == Layout::kQ4_1 ? simd::kNibbleMinimumGroups : simd::kNibbleGroups;
}

std::int64_t block_bytes_of(Layout layout, std::int64_t cols) {
  if (simd::is_quantized(layout))
    return (cols / kQuantGroup + 1) / 2 * offsets_of(layout).pair_bytes();
  return cols * (layout == Layout::kF32 ? 64 : 32);
}

// Writes one row into its lane of a zeroed block.
class LanePacker {
 public:
  LanePacker(Layout layout, std::int64_t cols, std::uint8_t* block, std::int64_t lane)
      : layout_(layout),
        groups_(cols / kQuantGroup),
        at_(offsets_of(layout)),
        block_(block),
        lane_(lane) {}

  void pack(const HostMatrix& m, std::int64_t row) const {
    switch (layout_) {
      case Layout::kF32:
        return pack_f32(m, row);
      case Layout::kF16:
        for (std::int64_t c = 0; c < m.cols; ++c) put(32 * c + 2 * lane_, half(m, row, c));
        return;
      case Layout::kBF16:
        for (std::int64_t c = 0; c < m.cols; ++c)
          put(64 * (c / 2) + 4 * lane_ + 2 * (c % 2), half(m, row, c));
        return;
      case Layout::kInt4:
        return pack_int4(m, row);
      case Layout::kQ4_0:
        return pack_q4(m, row, 2);
      case Layout::kQ4_1:
        return pack_q4(m, row, 4);
      case Layout::kQ8_0:
        return pack_q8(m, row);
    }
  }

 private:
  template <typename T>
  void put(std::int64_t offset, T value) const {
    std::memcpy(block_ + offset, &value, sizeof value);
  }

  static std::uint16_t half(const HostMatrix& m, std::int64_t row, std::int64_t column) {
    return static_cast<const std::uint16_t*>(m.data)[row * m.cols + column];
  }

  void pack_f32(const HostMatrix& m, std::int64_t row) const {
    std::vector<float> values(static_cast<std::size_t>(m.cols));
    dequantize_row(m, row, values.data());
    for (std::int64_t c = 0; c < m.cols; ++c)
      put(64 * c + 4 * lane_, values[static_cast<std::size_t>(c)]);
  }

  // A word of 8 columns keeps its 8 nibbles in the order 0 2 4 6 1 3 5 7.
  void pack_int4(const HostMatrix& m, std::int64_t row) const {
    const auto* words = static_cast<const std::uint32_t*>(m.data) + row * (m.cols / 8);
    for (std::int64_t w = 0; w < m.cols / 8; ++w) {
      std::uint32_t word = 0;
      for (int k = 0; k < 4; ++k) {
        word |= ((words[w] >> (8 * k)) & 0xfu) << (4 * k);
        word |= ((words[w] >> (8 * k + 4)) & 0xfu) << (4 * k + 16);
      }
      put(at_.words(w / 4) + 64 * (w % 4) + 4 * lane_, word);
    }
    const auto* scales = static_cast<const std::uint16_t*>(m.scales) + row * groups_;
    for (std::int64_t g = 0; g < groups_; ++g) put(at_.scales(g) + 2 * lane_, scales[g]);
  }

  void copy_half(std::int64_t offset, const std::uint8_t* from) const {
    std::memcpy(block_ + offset + 2 * lane_, from, 2);
  }

  void pack_q4(const HostMatrix& m, std::int64_t row, std::int64_t header) const {
    const std::uint8_t* from =
        static_cast<const std::uint8_t*>(m.data) + row * groups_ * (header + 16);
    for (std::int64_t g = 0; g < groups_; ++g, from += header + 16) {
      const auto element = [&](std::int64_t i) {
        const std::uint8_t byte = from[header + i % 16];
        return i < 16 ? byte & 0xf : byte >> 4;
      };
      for (std::int64_t q = 0; q < 4; ++q)
        for (std::int64_t i = 0; i < 4; ++i)
          put(at_.words(g) + 64 * q + 4 * lane_ + i,
              static_cast<std::uint8_t>(element(8 * q + i) | element(8 * q + 4 + i) << 4));
      copy_half(at_.scales(g), from);
      if (header == 4) copy_half(at_.minima(g), from + 2);
    }
  }

  void pack_q8(const HostMatrix& m, std::int64_t row) const {
    const std::uint8_t* from = static_cast<const std::uint8_t*>(m.data) + row * groups_ * 34;
    for (std::int64_t g = 0; g < groups_; ++g, from += 34) {
      for (std::int64_t i = 0; i < kQuantGroup; ++i)
        put(at_.words(g) + 64 * (i / 4) + 4 * lane_ + i % 4,
            static_cast<std::uint8_t>(from[2 + i] ^ 0x80));
      copy_half(at_.scales(g), from);
    }
  }

  Layout layout_;
  std::int64_t groups_;
  simd::GroupOffsets at_;
  std::uint8_t* block_;
  std::int64_t lane_;
};

}  // namespace

std::shared_ptr<std::uint8_t> WeightMemory::allocate(std::size_t num_bytes) {
  constexpr std::size_t kPieceBytes = std::size_t{16} << 20;
  const std::size_t rounded = (num_bytes + 63) / 64 * 64;
  if (piece_ == nullptr || used_ + rounded > piece_->num_bytes()) {
    piece_ = std::make_shared<Buffer>(Buffer::host(std::max(rounded, kPieceBytes)));
    used_ = 0;
  }
  auto* const data = static_cast<std::uint8_t*>(piece_->data()) + used_;
  used_ += rounded;
  return {piece_, data};
}

OwnedMatrix pack(std::span<const HostMatrix> parts, WeightMemory& memory, ThreadPool& pool) {
  COPPICE_CHECK(!parts.empty());
  std::vector<std::int64_t> ends;  // first row beyond each part
  std::int64_t rows = 0;
  for (const HostMatrix& part : parts) {
    check_matrix(part);
    COPPICE_CHECK_EQ(part.cols, parts[0].cols);
    ends.push_back(rows += part.rows);
  }
  OwnedMatrix matrix;
  simd::PackedMatrix& view = matrix.view;
  view.layout = layout_of(parts);
  view.rows = rows;
  view.cols = (parts[0].cols + 1) / 2 * 2;
  view.block_bytes = block_bytes_of(view.layout, view.cols);
  const std::int64_t blocks = (rows + kBlockRows - 1) / kBlockRows;
  matrix.storage = memory.allocate(static_cast<std::size_t>(blocks * view.block_bytes));
  std::uint8_t* const data = matrix.storage.get();
  view.data = data;
  pool.parallel_for(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin * kBlockRows; row < std::min(end * kBlockRows, rows); ++row) {
      const auto part = std::upper_bound(ends.begin(), ends.end(), row) - ends.begin();
      const HostMatrix& source = parts[static_cast<std::size_t>(part)];
      const std::int64_t first = ends[static_cast<std::size_t>(part)] - source.rows;
      LanePacker(view.layout, view.cols, data + row / kBlockRows * view.block_bytes,
                 row % kBlockRows)
          .pack(source, row - first);
    }
  });
  return matrix;
}

}  // namespace coppice::cpu
