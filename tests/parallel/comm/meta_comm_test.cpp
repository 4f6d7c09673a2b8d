// A rank without the others: it says what it would send.

#include "nibble/parallel/comm/meta_comm.h"

#include <gtest/gtest.h>

#include "nibble/core/ops/meta/meta_device.h"
#include "nibble/parallel/comm/thread_comm.h"
#include "nibble/parallel/data/tree_sum.h"

namespace nibble {
namespace {

// The same calls on real ranks and on one of a plan.
void exchange(Communicator& ranks, MemoryPool& pool) {
  const std::vector<bool> all(static_cast<size_t>(ranks.size()), true);
  Tensor values = Tensor::zeros(pool, {1000}, DType::f32), mine = Tensor::zeros(pool, {250}, DType::f32);
  const std::vector<int64_t> bounds = {0, 250, 500, 750, 1000};
  all_reduce_tree(ranks, "sum", values, all, {}, pool);
  reduce_scatter_tree(ranks, "reduce", values, bounds, mine, all, {DType::bf16}, pool);
  ranks.all_gather("gather", mine, values);
}

TEST(MetaComm, CountsWhatARealRankSends) {
  std::map<std::string, CommTraffic, std::less<>> real;
  run_on_threads(4, [&](Communicator& ranks) {
    MemoryPool pool;
    exchange(ranks, pool);
    if (ranks.rank() == 1) real = ranks.settings().traffic;
  });
  const MetaDevice device;
  MemoryPool pool(0, device);
  MetaComm planned(1, 4);
  exchange(planned, pool);
  ASSERT_EQ(planned.settings().traffic.size(), real.size());
  for (const auto& [name, traffic] : real) {
    const CommTraffic& of = planned.settings().traffic.at(name);
    EXPECT_EQ(of.calls, traffic.calls) << name;
    EXPECT_EQ(of.sent, traffic.sent) << name;
    EXPECT_EQ(of.received, traffic.received) << name;
  }
}

TEST(MetaComm, TheHostReadsOfAnExchangeWhatThisRankWouldSendItself) {
  MemoryPool pool;
  MetaComm planned(1, 3);
  const std::vector<int64_t> own = {1, 2, 3, 4};
  const std::vector<size_t> sent = {0, 8, 24, 32}, received = {0, 16, 32, 48};
  Tensor all = Tensor::zeros(pool, {6}, DType::i64);
  planned.all_to_all("counts", Tensor::from<int64_t>(pool, {4}, own), sent, all, received);
  EXPECT_EQ(std::vector<int64_t>(all.span<const int64_t>().begin(), all.span<const int64_t>().end()),
            (std::vector<int64_t>{2, 3, 2, 3, 2, 3}));
}

TEST(MetaComm, OneOfManyPiecesIsRunAndAllAreBooked) {
  const MetaDevice device;
  MemoryPool pool(0, device);
  std::map<std::string, std::pair<int, double>> counted;  // messages, bytes
  MetaComm planned(1, 4, [&](const std::string& operation, CommKind kind, double bytes) {
    auto& [messages, all] = counted[operation + (kind == CommKind::gather ? " gather" : " scatter")];
    ++messages;
    all += bytes;
  });
  constexpr int64_t kCount = int64_t{1} << 28;
  const std::vector<bool> present(4, true);
  Tensor values = Tensor::empty(pool, {kCount}, DType::f32), mine = Tensor::empty(pool, {kCount / 4}, DType::f32);
  const std::vector<int64_t> bounds = {0, kCount / 4, kCount / 2, kCount / 4 * 3, kCount};
  all_reduce_tree(planned, "sum", values, present, {}, pool);
  reduce_scatter_tree(planned, "reduce", values, bounds, mine, present, {}, pool);
  const std::pair<int, double> once(1, 4.0 * kCount);
  EXPECT_EQ(counted["sum scatter"], once);
  EXPECT_EQ(counted["sum gather"], once);
  EXPECT_EQ(counted["reduce scatter"], once);
}

TEST(MetaComm, TheOthersHaveWhatThisRankHas) {
  MetaComm planned(2, 4);
  EXPECT_EQ(planned.all_reduce_sum("tokens", 3.0), 12);
  EXPECT_THROW(planned.split(0, 0), CommError);
}

}  // namespace
}  // namespace nibble
