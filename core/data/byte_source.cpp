#include "nibble/core/data/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "nibble/core/base/error.h"
#include "nibble/core/io/open_file.h"

namespace nibble {

struct ByteSource::State {
  int file = -1;
  XXH3_state_t* hash = XXH3_createState();

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
  buffer_.resize(std::clamp(static_cast<size_t>(facts.st_size), size_t{1} << 10, size_t{1} << 18));
}

ByteSource::~ByteSource() = default;

bool ByteSource::fill() {
  const ssize_t count = uninterrupted([&] { return ::read(state_->file, buffer_.data(), buffer_.size()); });
  if (count < 0) throw IoError(path_, std::string("cannot be read: ") + std::strerror(errno));
  next_ = 0;
  size_ = static_cast<size_t>(count);
  bytes_ += size_;
  XXH3_64bits_update(state_->hash, buffer_.data(), size_);
  return count > 0;
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
