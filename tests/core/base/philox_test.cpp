#include "nibble/core/base/philox.h"

#include <gtest/gtest.h>

#include <set>

namespace nibble {
namespace {

using Words = std::array<uint32_t, 4>;

// Known-answer values of the Random123 library (kat_vectors, philox4x32-10).
TEST(Philox, GivesThePublishedWords) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, BoundedIntegersReachEveryValue) {
  PhiloxStream stream(7, 1, 0);
  std::set<uint64_t> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(stream.next_below(10));
  EXPECT_EQ(seen.size(), 10u);
  EXPECT_EQ(*seen.rbegin(), 9u);
}

}  // namespace
}  // namespace nibble
