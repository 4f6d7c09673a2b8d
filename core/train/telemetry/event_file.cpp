#include "nibble/core/train/telemetry/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>

#include "nibble/core/base/error.h"
#include "nibble/core/io/files/system_error.h"
#include "nibble/core/io/protobuf.h"

namespace nibble {

namespace {

constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? 0x82f63b78u : 0u);
    table[i] = value;
  }
  return table;
}

/// Event with wall_time = 1 and step = 2; `what` is the field that follows.
std::string event(int64_t step, uint32_t field, std::string_view what) {
  ProtoWriter event;
  event.real(1, std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
  if (step != 0) event.integer(2, static_cast<uint64_t>(step));
  event.text(field, what);
  return event.bytes;
}

constexpr uint32_t kFileVersion = 3, kSummary = 5, kSessionLog = 7;  // fields of Event

std::string file_name() {
  static std::atomic<int> files = 0;  // two files of one process and second must differ
  char host[256] = "localhost";
  gethostname(host, sizeof host - 1);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return "events.out.tfevents." + std::to_string(std::chrono::duration_cast<std::chrono::seconds>(now).count()) + "." +
         host + "." + std::to_string(getpid()) + "." + std::to_string(files++);
}

uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = make_crc_table();
  uint32_t crc = 0xffffffffu;
  for (const char byte : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  return ~crc;
}

EventFile::EventFile(const std::filesystem::path& directory, int64_t continues_at) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw system_error(directory, "cannot be made", error.value());
  path_ = directory / file_name();
  descriptor_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw system_error(path_, "cannot be opened", errno);
  write(event(0, kFileVersion, "brain.Event:2"));
  if (continues_at > 0) {
    ProtoWriter started;
    started.integer(1, 1);  // SessionLog.status = START: void what others say from this step on
    write(event(continues_at, kSessionLog, started.bytes));
  }
}

EventFile::~EventFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void EventFile::write(const std::string& event) {
  ProtoWriter record;
  record.fixed(static_cast<uint64_t>(event.size()));
  record.fixed(masked(crc32c(record.bytes)));
  record.bytes += event;
  record.fixed(masked(crc32c(event)));
  waiting_ += record.bytes;
  while (!waiting_.empty()) {
    const ssize_t count = ::write(descriptor_, waiting_.data(), waiting_.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return;  // a full disk: what is left goes first the next time
    waiting_.erase(0, static_cast<size_t>(count));
  }
}

void EventFile::add_scalars(int64_t step, std::span<const std::pair<std::string_view, double>> values) {
  ProtoWriter summary;
  for (const auto& [tag, number] : values) {
    ProtoWriter value;
    value.text(1, tag);
    value.real(2, static_cast<float>(number));
    summary.text(1, value.bytes);
  }
  write(event(step, kSummary, summary.bytes));
}

void EventFile::add_text(int64_t step, std::string_view tag, std::string_view text) {
  ProtoWriter plugin, metadata, dimension, shape, tensor, value, summary;
  plugin.text(1, "text");
  metadata.text(1, plugin.bytes);
  dimension.integer(1, 1);
  shape.text(2, dimension.bytes);
  tensor.integer(1, 7);  // DT_STRING
  tensor.text(2, shape.bytes);
  tensor.text(8, text);
  value.text(1, tag);
  value.text(8, tensor.bytes);
  value.text(9, metadata.bytes);
  summary.text(1, value.bytes);
  write(event(step, kSummary, summary.bytes));
}

}  // namespace nibble
