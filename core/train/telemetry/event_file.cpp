#include "nibble/core/train/telemetry/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>

#include "nibble/core/base/error.h"
#include "nibble/core/io/files/system_error.h"

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

// Protocol buffers, as far as events need them: a field is a tag (number << 3 | wire type) and a value.
void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

template <typename T>
void put_fixed(std::string& out, T value) {  // little-endian, as every machine this runs on
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

void put_integer(std::string& out, int field, int64_t value) {
  put_varint(out, static_cast<uint64_t>(field) << 3);
  put_varint(out, static_cast<uint64_t>(value));
}

void put_double(std::string& out, int field, double value) {
  put_varint(out, static_cast<uint64_t>(field) << 3 | 1);
  put_fixed(out, value);
}

void put_float(std::string& out, int field, float value) {
  put_varint(out, static_cast<uint64_t>(field) << 3 | 5);
  put_fixed(out, value);
}

void put_bytes(std::string& out, int field, std::string_view value) {
  put_varint(out, static_cast<uint64_t>(field) << 3 | 2);
  put_varint(out, value.size());
  out += value;
}

/// Event with wall_time = 1 and step = 2; `what` is the field that follows.
std::string event(int64_t step, int field, std::string_view what) {
  std::string result;
  put_double(result, 1, std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
  if (step != 0) put_integer(result, 2, step);
  put_bytes(result, field, what);
  return result;
}

constexpr int kFileVersion = 3, kSummary = 5, kSessionLog = 7;  // fields of Event

std::string file_name() {
  static std::atomic<int> count = 0;  // two files of one process and second must differ
  char host[256] = "localhost";
  gethostname(host, sizeof host - 1);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return "events.out.tfevents." + std::to_string(std::chrono::duration_cast<std::chrono::seconds>(now).count()) + "." +
         host + "." + std::to_string(getpid()) + "." + std::to_string(count++);
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
  if (error) throw IoError(directory.string(), "cannot be made: " + error.message());
  path_ = directory / file_name();
  descriptor_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw system_error(path_, "cannot be opened", errno);
  write(event(0, kFileVersion, "brain.Event:2"));
  if (continues_at > 0) {
    std::string started;
    put_integer(started, 1, 1);  // SessionLog.status = START: void what others say from this step on
    write(event(continues_at, kSessionLog, started));
  }
}

EventFile::~EventFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void EventFile::write(const std::string& event) {
  std::string length;
  put_fixed(length, static_cast<uint64_t>(event.size()));
  waiting_ += length;
  put_fixed(waiting_, masked(crc32c(length)));
  waiting_ += event;
  put_fixed(waiting_, masked(crc32c(event)));
  while (!waiting_.empty()) {
    const ssize_t count = ::write(descriptor_, waiting_.data(), waiting_.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return;  // a full disk: what is left goes first the next time
    waiting_.erase(0, static_cast<size_t>(count));
  }
}

void EventFile::add_scalars(int64_t step, std::span<const std::pair<std::string_view, double>> values) {
  std::string summary;
  for (const auto& [tag, number] : values) {
    std::string value;
    put_bytes(value, 1, tag);
    put_float(value, 2, static_cast<float>(number));
    put_bytes(summary, 1, value);
  }
  write(event(step, kSummary, summary));
}

void EventFile::add_text(int64_t step, std::string_view tag, std::string_view text) {
  std::string plugin, metadata, dimension, shape, tensor, value, summary;
  put_bytes(plugin, 1, "text");
  put_bytes(metadata, 1, plugin);
  put_integer(dimension, 1, 1);
  put_bytes(shape, 2, dimension);
  put_integer(tensor, 1, 7);  // DT_STRING
  put_bytes(tensor, 2, shape);
  put_bytes(tensor, 8, text);
  put_bytes(value, 1, tag);
  put_bytes(value, 8, tensor);
  put_bytes(value, 9, metadata);
  put_bytes(summary, 1, value);
  write(event(step, kSummary, summary));
}

}  // namespace nibble
