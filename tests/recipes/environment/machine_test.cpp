#include "nibble/recipes/environment/machine.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(Machine, IsKnownWhereProcIsNotMounted) {
  const Machine with = this_machine(), without = this_machine("/nowhere");
  EXPECT_GT(without.memory_total, 0);
  EXPECT_NEAR(static_cast<double>(without.memory_total), static_cast<double>(with.memory_total),
              0.05 * static_cast<double>(with.memory_total));
  EXPECT_GT(without.usable_memory(), 0);
  EXPECT_LE(without.memory_available, without.memory_total);
  EXPECT_NE(without.cpu, "unknown");
  EXPECT_GT(without.usable_cores(), 0);
}

TEST(Machine, TheLeastOfItsLimitsIsTheBudgetOfAProcess) {
  Machine machine;
  machine.memory_total = 1000;
  machine.memory_available = 700;
  const auto is = [&](int64_t processes, int64_t bytes, const std::string& set_by, int64_t usable) {
    const MemoryBudget budget = machine.memory_budget(processes);
    EXPECT_EQ(budget.bytes, bytes);
    EXPECT_EQ(budget.set_by, set_by);
    EXPECT_EQ(machine.usable_memory(processes), usable);
  };
  is(1, 1000, "this machine has", 700);
  is(4, 250, "this machine has", 175);
  machine.memory_limit = 600;
  machine.memory_left = 400;
  is(1, 600, "the control group allows", 400);
  machine.address_space = 200;  // of one process, however many there are
  machine.address_space_used = 50;
  is(1, 200, "the limit of the address space (ulimit -v) allows", 150);
  is(2, 200, "the limit of the address space (ulimit -v) allows", 150);
  is(4, 150, "the control group allows", 100);
  machine.address_space_used = 300;
  EXPECT_EQ(machine.usable_memory(), 0);
}

TEST(NumaNodes, AreDescribedByTheirCores) {
  EXPECT_EQ(numa_nodes_text({{0, 1}, {2, 3}}), "2 nodes of 2 cores");
  EXPECT_EQ(numa_nodes_text({{0}, {1, 2, 3}}), "2 nodes of 1 to 3 cores");
}

TEST(NumaNodes, ShareOutRanks) {
  const std::vector<NumaNode> nodes = {{0, 1}, {2, 3}};
  EXPECT_EQ(cores_of_rank(nodes, 0, 1), (NumaNode{0, 1, 2, 3}));
  EXPECT_EQ(cores_of_rank(nodes, 1, 2), (NumaNode{2, 3}));
  EXPECT_EQ(cores_of_rank(nodes, 1, 4), (NumaNode{0, 1}));
  EXPECT_EQ(cores_of_rank(nodes, 2, 4), (NumaNode{2, 3}));
  EXPECT_EQ(cores_of_rank(nodes, 2, 3), (NumaNode{2, 3}));
  EXPECT_TRUE(cores_of_rank({{0, 1}}, 1, 2).empty());
}

}  // namespace
}  // namespace nibble
