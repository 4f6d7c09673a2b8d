#include "nibble/core/data/records/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "nibble/core/base/error.h"
#include "nibble/core/io/compression.h"
#include "nibble/core/io/files/open_file.h"

namespace nibble {

namespace {
constexpr size_t kBufferBytes = size_t{1} << 18;
}

struct ByteSource::State {
  int file = -1;
  XXH3_state_t* hash = XXH3_createState();
  bool begun = false;
  std::unique_ptr<StreamUnpacker> unpacker;  // null: the file's bytes are the text's
  std::string packed;
  std::span<const char> left;  // of `packed`

  ~State() {
    if (file >= 0) ::close(file);
    XXH3_freeState(hash);
  }
};

ByteSource::ByteSource(std::string path) : path_(std::move(path)), state_(std::make_unique<State>()) {
  // Without O_NONBLOCK opening a pipe that nobody writes to would wait for ever.
  state_->file = open_file(path_, O_RDONLY | O_NONBLOCK);
  if (state_->file < 0) {
    if (errno == ENOENT) throw InputError(path_, "no such file", "check the path");
    throw IoError(path_, std::string("cannot be opened: ") + std::strerror(errno), "check its permissions");
  }
  struct stat facts;
  if (::fstat(state_->file, &facts) != 0) throw IoError(path_, std::string("fstat failed: ") + std::strerror(errno));
  if (!S_ISREG(facts.st_mode)) {
    throw InputError(path_, S_ISDIR(facts.st_mode) ? "is a directory" : "is not a regular file", "give a data file");
  }
  XXH3_64bits_reset(state_->hash);
  buffer_.resize(std::clamp(static_cast<size_t>(facts.st_size), size_t{1} << 10, kBufferBytes));
}

ByteSource::~ByteSource() = default;

bool ByteSource::read_file(std::string& buffer, size_t& size) {
  const ssize_t count = uninterrupted([&] { return ::read(state_->file, buffer.data(), buffer.size()); });
  if (count < 0) throw IoError(path_, std::string("cannot be read: ") + std::strerror(errno));
  size = static_cast<size_t>(count);
  bytes_ += size;
  XXH3_64bits_update(state_->hash, buffer.data(), size);
  return count > 0;
}

bool ByteSource::fill() {
  State& state = *state_;
  next_ = size_ = 0;
  if (!state.unpacker) {
    if (!read_file(buffer_, size_)) return false;
    if (!state.begun) state.unpacker = StreamUnpacker::open({buffer_.data(), size_}, path_);
    state.begun = true;
    if (!state.unpacker) return true;
    state.packed = buffer_;
    state.left = {state.packed.data(), size_};
    buffer_.resize(kBufferBytes);
  }
  for (size_ = 0; size_ == 0;) {
    size_ = state.unpacker->unpack(state.left, buffer_);
    if (size_ > 0 || !state.left.empty()) continue;
    size_t count = 0;
    if (!read_file(state.packed, count)) {
      if (state.unpacker->is_whole()) return false;
      throw InputError(path_, "ends inside of its compressed data", "it is cut off: download or copy it again");
    }
    state.left = {state.packed.data(), count};
  }
  return true;
}

bool ByteSource::append_line_part(std::string& text) {
  if (peek() == kEnd) return false;
  const char* begin = buffer_.data() + next_;
  const char* end = static_cast<const char*>(std::memchr(begin, '\n', size_ - next_));
  const size_t count = end ? static_cast<size_t>(end - begin) : size_ - next_;
  text.append(begin, count);
  next_ += count;
  column_ += std::count_if(begin, begin + count, [](char c) { return (c & 0xC0) != 0x80; });
  return true;
}

uint64_t ByteSource::hash() const { return XXH3_64bits_digest(state_->hash); }

}  // namespace nibble
