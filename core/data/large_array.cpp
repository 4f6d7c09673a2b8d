#include "nibble/core/data/large_array.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <new>
#include <utility>

#include "nibble/core/io/files/system_error.h"
#include "nibble/core/tensor/nameless_file.h"

namespace nibble {

namespace {

size_t whole_pages(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

}  // namespace

void release_pages(std::span<const std::byte> bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = reinterpret_cast<uintptr_t>(bytes.data()) / page * page;
  const uintptr_t last = (reinterpret_cast<uintptr_t>(bytes.data() + bytes.size()) + page - 1) / page * page;
  if (!bytes.empty()) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

LargeBytes::~LargeBytes() {
  if (file_ < 0) {
    std::free(data_);
    return;
  }
  if (data_ != nullptr) munmap(data_, capacity_);
  close(file_);
}

LargeBytes::LargeBytes(LargeBytes&& other) noexcept
    : directory_(std::move(other.directory_)),
      data_(std::exchange(other.data_, nullptr)),
      capacity_(std::exchange(other.capacity_, 0)),
      file_(std::exchange(other.file_, -1)) {}

LargeBytes& LargeBytes::operator=(LargeBytes&& other) noexcept {
  std::swap(directory_, other.directory_);
  std::swap(data_, other.data_);
  std::swap(capacity_, other.capacity_);
  std::swap(file_, other.file_);
  return *this;
}

void LargeBytes::reserve(size_t bytes) {
  if (bytes <= capacity_) return;
  if (!directory_.empty()) return grow_file(whole_pages(bytes));
  void* grown = std::realloc(data_, bytes);  // what is large is moved by its pages, without a copy
  if (grown == nullptr) throw std::bad_alloc();
  data_ = static_cast<std::byte*>(grown);
  capacity_ = bytes;
}

void LargeBytes::grow_file(size_t bytes) {
  if (file_ < 0) file_ = open_nameless_file(directory_.string());
  if (file_ < 0) throw system_error(directory_, "takes no temporary file", errno);
  // Space is taken now: a write to a mapped page without space would end the program.
  int code = EINTR;
  while (code == EINTR) code = posix_fallocate(file_, 0, static_cast<off_t>(bytes));
  if (code != 0) throw system_error(directory_, "has no room for the order of the samples", code);
  void* mapped = data_ == nullptr ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0)
                                  : mremap(data_, capacity_, bytes, MREMAP_MAYMOVE);
  if (mapped == MAP_FAILED) throw system_error(directory_, "has a temporary file that cannot be mapped", errno);
  data_ = static_cast<std::byte*>(mapped);
  capacity_ = bytes;
}

void LargeBytes::release() const {
  if (file_ >= 0) release_pages({data_, capacity_});
}

}  // namespace nibble
