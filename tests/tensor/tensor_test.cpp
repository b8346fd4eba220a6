#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include "tensor/arena.h"
#include "tensor/buffer.h"

namespace coppice {
namespace {

TEST(TensorTest, RowsAndColumnsAreViews) {
  const Buffer buffer = Buffer::host(6 * 4 * sizeof(float));
  const Tensor tensor = buffer.tensor(DType::kF32, {6, 4});
  tensor.data<float>()[2 * 4 + 1] = 7.0f;
  const Tensor column = tensor.columns(1, 2);
  EXPECT_FALSE(column.is_dense());
  EXPECT_EQ(column.row<float>(2)[0], 7.0f);
  EXPECT_EQ(tensor.rows(2, 1).data<float>()[1], 7.0f);
  EXPECT_EQ(tensor.describe(), "F32[6, 4]");
  EXPECT_EQ(tensor.reshape({6, 2, 2}).row<float>(2)[1], 7.0f);
}

TEST(TensorDeathTest, WrongTypeAndBoundsAreCaught) {
  const Buffer buffer = Buffer::host(16);
  const Tensor tensor = buffer.tensor(DType::kF32, {2, 2});
  EXPECT_DEATH(tensor.data<bf16>(), "tensor is F32, asked as BF16");
  EXPECT_DEATH(tensor.rows(1, 2), "rows 1 \\+ 2");
  EXPECT_DEATH(buffer.tensor(DType::kF32, {2, 3}), "24 against 16");
}

TEST(ArenaTest, AllocationsFollowOneAnotherAndDoNotExceedTheBuffer) {
  Arena arena(Buffer::host(512));
  const Tensor first = arena.allocate(DType::kF32, {8});
  const Tensor second = arena.allocate(DType::kF32, {8});
  EXPECT_EQ(static_cast<std::byte*>(second.raw()) - static_cast<std::byte*>(first.raw()), 256);
  EXPECT_DEATH(arena.allocate(DType::kF32, {1}), "516 against 512");
}

}  // namespace
}  // namespace coppice
