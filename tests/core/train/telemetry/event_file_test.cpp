#include "nibble/core/train/telemetry/event_file.h"

#include <gtest/gtest.h>

#include <cstring>

#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using test::TemporaryDirectory;

template <typename T>
T fixed_at(const std::string& bytes, size_t place) {
  T value{};
  if (place + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + place, sizeof value);
  return value;
}

uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

/// The events of a TFRecord file whose checksums all hold; a failure when one does not.
std::vector<std::string> events_of(const std::string& file) {
  std::vector<std::string> events;
  for (size_t at = 0; at < file.size();) {
    const uint64_t length = fixed_at<uint64_t>(file, at);
    EXPECT_EQ(fixed_at<uint32_t>(file, at + 8), masked(crc32c(file.substr(at, 8))));
    if (at + 16 + length > file.size()) {
      ADD_FAILURE() << "torn record";
      break;
    }
    events.push_back(file.substr(at + 12, length));
    EXPECT_EQ(fixed_at<uint32_t>(file, at + 12 + length), masked(crc32c(events.back())));
    at += 16 + length;
  }
  return events;
}

TEST(EventFile, ChecksumIsCastagnoli) {  // RFC 3720, B.4
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST(EventFile, HoldsVersionAndScalarsByteForByte) {
  const TemporaryDirectory directory;
  std::filesystem::path path;
  {
    EventFile file(directory / "tensorboard");
    path = file.path();
    const std::pair<std::string_view, double> values[] = {{"train/loss", 1.5}};
    file.add_scalars(300, values);
  }
  EXPECT_TRUE(path.filename().string().starts_with("events.out.tfevents."));
  const std::vector<std::string> events = events_of(test::read_bytes(path));
  ASSERT_EQ(events.size(), 2u);
  // Field 1 is the wall time (fixed 64 bits), so what follows starts at byte 9.
  EXPECT_EQ(events[0].substr(9), std::string("\x1a\x0d"
                                             "brain.Event:2"));
  const std::string scalar = std::string("\x10\xac\x02", 3) +         // step = 300
                             std::string("\x2a\x13\x0a\x11", 4) +     // summary { value {
                             std::string("\x0a\x0atrain/loss", 12) +  // tag
                             std::string("\x15\x00\x00\xc0\x3f", 5);  // simple_value = 1.5f
  EXPECT_EQ(events[1].substr(9), scalar);
}

TEST(EventFile, ResumedRunVoidsLaterStepsOfEarlierFiles) {
  const TemporaryDirectory directory;
  const EventFile first(directory.path());
  const EventFile second(directory.path(), 8);
  EXPECT_NE(first.path(), second.path());
  const std::vector<std::string> events = events_of(test::read_bytes(second.path()));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].substr(9),
            std::string("\x10\x08\x3a\x02\x08\x01", 6));  // step = 8, session_log { status = START }
}

}  // namespace
}  // namespace nibble
