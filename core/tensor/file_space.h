#pragma once
// Which bytes of a file are in use.

#include <cstdint>
#include <map>

namespace nibble {

/// First fit; neighbours that are free become one, and what is free at the end is no part of the file.
class FileSpace {
 public:
  /// Where `size` bytes lie from now on, at a multiple of 4096 if all sizes are.
  int64_t take(int64_t size);
  void give(int64_t offset, int64_t size);
  /// Behind the last byte in use.
  int64_t end() const { return end_; }

 private:
  std::map<int64_t, int64_t> free_;  // offset -> size
  int64_t end_ = 0;
};

}  // namespace nibble
