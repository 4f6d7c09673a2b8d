#pragma once
// What every communicator does, whatever engine is behind it. Called on every rank of a group at once.

#include <gtest/gtest.h>

#include <numeric>

#include "nibble/core/comm/communicator.h"

namespace nibble::test {

inline Tensor filled(MemoryPool& pool, int64_t count, float first) {
  Tensor tensor = Tensor::empty(pool, {count}, DType::f32);
  for (int64_t i = 0; i < count; ++i) tensor.data<float>()[i] = first + static_cast<float>(i);
  return tensor;
}

inline void gathers_parts_in_rank_order(Communicator& comm) {
  MemoryPool pool;
  Tensor out = Tensor::zeros(pool, {comm.size() * 3}, DType::f32);
  comm.all_gather("equal", filled(pool, 3, 100.0f * static_cast<float>(comm.rank())), out);
  for (int r = 0; r < comm.size(); ++r) {
    for (int i = 0; i < 3; ++i) EXPECT_EQ(out.data<float>()[r * 3 + i], static_cast<float>(100 * r + i));
  }
}

/// Rank r gives r elements: the first one none at all.
inline void gathers_unequal_parts_while_others_go_on(Communicator& comm) {
  MemoryPool pool;
  std::vector<size_t> bounds = {0};
  for (int r = 0; r < comm.size(); ++r) bounds.push_back(bounds.back() + static_cast<size_t>(r) * 4);
  Tensor first = Tensor::zeros(pool, {static_cast<int64_t>(bounds.back() / 4)}, DType::f32), second = first.clone(pool);
  const Tensor part = filled(pool, comm.rank(), static_cast<float>(comm.rank()));
  auto one = comm.start_all_gather("first", part, first, bounds);
  auto two = comm.start_all_gather("second", part, second, bounds);
  comm.barrier("between");
  two->wait();
  one->wait();
  EXPECT_TRUE(one->done());
  for (int r = 0; r < comm.size(); ++r) {
    for (int i = 0; i < r; ++i) {
      EXPECT_EQ(first.data<float>()[bounds[static_cast<size_t>(r)] / 4 + static_cast<size_t>(i)],
                static_cast<float>(r + i));
      EXPECT_EQ(second.data<float>()[bounds[static_cast<size_t>(r)] / 4 + static_cast<size_t>(i)],
                static_cast<float>(r + i));
    }
  }
}

/// Rank s sends d + 1 elements to rank d.
inline void exchanges_unequal_blocks(Communicator& comm) {
  MemoryPool pool;
  const size_t ranks = static_cast<size_t>(comm.size()), mine = static_cast<size_t>(comm.rank()) + 1;
  std::vector<size_t> send = {0}, receive = {0};
  for (size_t r = 0; r < ranks; ++r) {
    send.push_back(send.back() + (r + 1) * 4);
    receive.push_back(receive.back() + mine * 4);
  }
  const Tensor out = filled(pool, static_cast<int64_t>(send.back() / 4), 1000.0f * static_cast<float>(comm.rank()));
  Tensor in = Tensor::zeros(pool, {static_cast<int64_t>(receive.back() / 4)}, DType::f32);
  comm.all_to_all("blocks", out, send, in, receive);
  for (size_t s = 0; s < ranks; ++s) {
    for (size_t i = 0; i < mine; ++i) {
      const size_t at = send[static_cast<size_t>(comm.rank())] / 4 + i;
      EXPECT_EQ(in.data<float>()[s * mine + i], static_cast<float>(1000 * s + at));
    }
  }
}

inline void sums_are_in_rank_order_and_equal_everywhere(Communicator& comm) {
  double expected = 0;
  for (int r = 0; r < comm.size(); ++r) expected += 0.1 * (r + 1);
  EXPECT_EQ(comm.all_reduce_sum("sum", 0.1 * (comm.rank() + 1)), expected);
}

inline void broadcasts_from_any_root(Communicator& comm) {
  MemoryPool pool;
  for (int root = 0; root < comm.size(); ++root) {
    Tensor value = filled(pool, 5, static_cast<float>(10 * comm.rank()));
    comm.broadcast("root", value, root);
    EXPECT_EQ(value.data<float>()[4], static_cast<float>(10 * root + 4));
  }
}

/// Both directions at once, several in flight, larger than any eager limit.
inline void messages_keep_their_order_and_do_not_block(Communicator& comm) {
  if (comm.size() == 1) return;
  MemoryPool pool;
  const int next = (comm.rank() + 1) % comm.size(), previous = (comm.rank() + comm.size() - 1) % comm.size();
  constexpr int64_t kCount = 300'000;
  for (int k = 0; k < 3; ++k) comm.send("ring", filled(pool, kCount, static_cast<float>(1000 * comm.rank() + k)), next);
  for (int k = 0; k < 3; ++k) {
    Tensor got = Tensor::zeros(pool, {kCount}, DType::f32);
    comm.receive("ring", got, previous);
    EXPECT_EQ(got.data<float>()[7], static_cast<float>(1000 * previous + k + 7));
  }
  comm.barrier("end of the ring");
}

inline void splits_into_groups_ordered_by_key(Communicator& comm) {
  const auto parity = comm.split(comm.rank() % 2, -comm.rank());
  EXPECT_EQ(parity->size(), (comm.size() + 1 - comm.rank() % 2) / 2);
  double expected = 0;
  for (int r = comm.rank() % 2; r < comm.size(); r += 2) expected += r;
  EXPECT_EQ(parity->all_reduce_sum("parity", comm.rank()), expected);
  const double last = comm.rank() % 2 + 2.0 * (parity->size() - 1);  // the largest rank has the smallest key
  EXPECT_EQ(parity->all_reduce_sum("first", parity->rank() == 0 ? comm.rank() : 0), last);
}

inline void counts_the_bytes_of_every_operation(Communicator& comm) {
  MemoryPool pool;
  comm.settings().traffic.clear();
  const int64_t others = comm.size() - 1;
  Tensor out = Tensor::zeros(pool, {comm.size() * 8}, DType::f32), back = out.clone(pool);
  comm.all_gather("gather", filled(pool, 8, 0), out);
  comm.all_to_all("exchange", out, back);
  const auto& traffic = comm.settings().traffic;
  EXPECT_EQ(traffic.at("gather").sent, 32 * others);
  EXPECT_EQ(traffic.at("gather").received, 32 * others);
  EXPECT_EQ(traffic.at("exchange").sent, 32 * others);
  EXPECT_EQ(traffic.at("exchange").calls, 1);
}

inline void conforms(Communicator& comm) {
  gathers_parts_in_rank_order(comm);
  gathers_unequal_parts_while_others_go_on(comm);
  exchanges_unequal_blocks(comm);
  sums_are_in_rank_order_and_equal_everywhere(comm);
  broadcasts_from_any_root(comm);
  messages_keep_their_order_and_do_not_block(comm);
  splits_into_groups_ordered_by_key(comm);
  counts_the_bytes_of_every_operation(comm);
}

}  // namespace nibble::test
