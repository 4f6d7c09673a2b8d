#include "nibble/core/tensor/storage.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "nibble/core/base/error.h"
#include "nibble/core/tensor/map_fault.h"

namespace nibble {

FileMap::FileMap(const std::string& path) : path_(path) {
  int descriptor = -1;
  do {
    descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  } while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) throw IoError(path, std::string("cannot be opened: ") + std::strerror(errno), "check the path");
  struct stat status {};
  const bool regular = fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  size_ = regular ? static_cast<size_t>(status.st_size) : 0;
  void* address = regular && size_ > 0 ? mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor, 0) : nullptr;
  const int failure = errno;
  close(descriptor);
  if (!regular) throw IoError(path, "is not a regular file", "give the path of a file");
  if (address == MAP_FAILED) throw IoError(path, std::string("cannot be mapped: ") + std::strerror(failure));
  data_ = static_cast<std::byte*>(address);
  if (data_ != nullptr) detail::register_map(data_, size_, path_.c_str());
}

FileMap::~FileMap() {
  if (data_ == nullptr) return;
  detail::forget_map(data_);
  munmap(data_, size_);
}

std::shared_ptr<Storage> Storage::owned(MemoryPool& pool, size_t bytes, const std::string& what) {
  auto storage = std::make_shared<Storage>();
  storage->block_ = pool.allocate(bytes, what);
  storage->data_ = storage->block_.get();
  storage->size_ = bytes;
  storage->device_ = &pool.device();
  return storage;
}

std::shared_ptr<Storage> Storage::mapped(std::shared_ptr<const FileMap> file, size_t offset, size_t bytes) {
  if (offset > file->size() || bytes > file->size() - offset) {
    throw InputError(file->path(), "is shorter than its header says", "download or copy the file again");
  }
  auto storage = std::make_shared<Storage>();
  storage->data_ = const_cast<std::byte*>(file->data()) + offset;
  storage->size_ = bytes;
  storage->file_ = std::move(file);
  storage->writable_ = false;
  return storage;
}

std::shared_ptr<Storage> Storage::read_only(std::shared_ptr<std::byte> block, size_t bytes, const Device& device) {
  auto storage = std::make_shared<Storage>();
  storage->data_ = block.get();
  storage->block_ = std::move(block);
  storage->size_ = bytes;
  storage->writable_ = false;
  storage->device_ = &device;
  return storage;
}

}  // namespace nibble
