#include "nibble/core/data/token_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "nibble/core/base/error.h"
#include "nibble/core/io/system_error.h"

namespace nibble {

namespace {

uint64_t page_bytes() { return static_cast<uint64_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& path)
    : path_(path), file_(open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
  if (file_ < 0) throw system_error(path, "cannot be written", errno);
}

TokenFile::~TokenFile() {
  if (file_ >= 0) close(file_);
}

TokenFile::Block TokenFile::grow(size_t count) {
  if (const auto last = last_.lock()) release_codes(last.get(), last.get() + last_count_);
  const uint64_t page = page_bytes(), bytes = (count * sizeof(int32_t) + page - 1) / page * page;
  const uint64_t begin = codes_ * sizeof(int32_t);
  // Space is taken now: a write to a mapped page without space would end the program.
  if (const int code = posix_fallocate(file_, static_cast<off_t>(begin), static_cast<off_t>(bytes)); code != 0)
    throw system_error(path_, "cannot grow", code);
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, static_cast<off_t>(begin));
  if (mapped == MAP_FAILED) throw system_error(path_, "cannot be mapped", errno);
  Block block{
      std::shared_ptr<int32_t[]>(static_cast<int32_t*>(mapped), [bytes](int32_t* codes) { munmap(codes, bytes); }),
      codes_};
  codes_ += bytes / sizeof(int32_t);
  last_ = block.codes;
  last_count_ = bytes / sizeof(int32_t);
  return block;
}

void TokenFile::finish(uint64_t count) {
  NIBBLE_CHECK(count <= codes_, "codes in the file");
  // Blocks stay mapped: what is cut off must not be used again.
  if (ftruncate(file_, static_cast<off_t>(count * sizeof(int32_t))) != 0 || fsync(file_) != 0)
    throw system_error(path_, "cannot be written", errno);
}

void release_codes(const int32_t* begin, const int32_t* end) {
  const uint64_t page = page_bytes();
  const uint64_t first = reinterpret_cast<uintptr_t>(begin) / page * page;
  const uint64_t last = (reinterpret_cast<uintptr_t>(end) + page - 1) / page * page;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace nibble
