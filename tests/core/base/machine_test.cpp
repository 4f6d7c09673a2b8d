#include "nibble/core/base/machine.h"

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

}  // namespace
}  // namespace nibble
