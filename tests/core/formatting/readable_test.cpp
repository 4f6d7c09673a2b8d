#include "nibble/core/formatting/readable.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace nibble {
namespace {

TEST(Readable, BytesHaveThreeDigitsAndAUnit) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(512), "512 B");
  EXPECT_EQ(bytes_text(13601001), "13.0 MiB");
  EXPECT_EQ(bytes_text(850.0 * (1 << 20)), "850 MiB");
  EXPECT_EQ(bytes_text(1.5 * (1 << 30)), "1.50 GiB");
  EXPECT_EQ(bytes_text(1048575), "1.00 MiB") << "not 1024 KiB";
  EXPECT_EQ(bytes_text(10239.0), "10.0 KiB") << "not 10.00";
  EXPECT_EQ(bytes_text(std::ldexp(1.0, 60)), "1.00 EiB");
}

TEST(Readable, SecondsAreHoursAndMinutesWhereThereAreAny) {
  EXPECT_EQ(seconds_text(12.4), "12s");
  EXPECT_EQ(seconds_text(200), "3m 20s");
  EXPECT_EQ(seconds_text(1.07e4), "2h 58m");
  EXPECT_EQ(seconds_text(7500), "2h 05m");
  EXPECT_EQ(seconds_text(3 * 86400 + 4 * 3600), "3d 04h");
  EXPECT_EQ(seconds_text(std::numeric_limits<double>::infinity()), seconds_text(1e12));
  EXPECT_EQ(precise_seconds_text(0.01234), "0.0123 s");
  EXPECT_EQ(precise_seconds_text(12.34), "12.3 s");
  EXPECT_EQ(precise_seconds_text(0), "0 s");
  EXPECT_EQ(precise_seconds_text(1.86e-5), "under 0.1 ms") << "not 1.86e-05 s";
  EXPECT_EQ(precise_seconds_text(0.00012), "0.00012 s");
  EXPECT_EQ(precise_seconds_text(59.99), "1m 00s");
  EXPECT_EQ(precise_seconds_text(1.07e4), "2h 58m");
}

TEST(Readable, OneIsNotMany) {
  EXPECT_EQ(count_text(1, "thread"), "1 thread");
  EXPECT_EQ(count_text(0, "thread"), "0 threads");
  EXPECT_EQ(count_text(4, "thread"), "4 threads");
  EXPECT_EQ(count_text(20920, "token"), "20,920 tokens");
  EXPECT_EQ(count_text(1, "record is", "records are"), "1 record is");
  EXPECT_EQ(count_text(2, "record is", "records are"), "2 records are");
}

TEST(Readable, LongNumbersAreGrouped) {
  EXPECT_EQ(grouped_text(999), "999");
  EXPECT_EQ(grouped_text(1000), "1,000");
  EXPECT_EQ(grouped_text(134515008), "134,515,008");
  EXPECT_EQ(grouped_text(-1234), "-1,234");
}

}  // namespace
}  // namespace nibble
