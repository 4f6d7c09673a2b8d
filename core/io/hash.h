#pragma once
// Fingerprints of bytes and files: XXH3, 128 bits (not cryptographic: finds damage and mix-ups, not forgery).

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace nibble {

/// XXH3-128 of a stream of bytes.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;

  void update(std::span<const std::byte> bytes);
  /// 32 lower-case hexadecimal digits of what was seen so far (the canonical form that xxhsum -H2 prints).
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string hash_bytes(std::span<const std::byte> bytes);

/// Throws IoError when the file cannot be read.
std::string hash_file(const std::filesystem::path& path);

}  // namespace nibble
