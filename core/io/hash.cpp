#include "nibble/core/io/hash.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <memory>

#include "nibble/core/base/error.h"
#include "nibble/core/io/files/open_file.h"
#include "nibble/core/io/files/system_error.h"

namespace nibble {

struct Hasher::State {
  XXH3_state_t* xxh = XXH3_createState();
  State() {
    NIBBLE_CHECK(xxh != nullptr, "out of memory");
    XXH3_128bits_reset(xxh);
  }
  ~State() { XXH3_freeState(xxh); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

Hasher::Hasher() : state_(std::make_unique<State>()) {}
Hasher::~Hasher() = default;
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;

void Hasher::update(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size());
}

std::string Hasher::hex() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_->xxh));
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : canonical.digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string hash_bytes(std::span<const std::byte> bytes) {
  Hasher hasher;
  hasher.update(bytes);
  return hasher.hex();
}

std::string hash_file(const std::filesystem::path& path) {
  const int descriptor = open_file(path, O_RDONLY | O_NONBLOCK);
  if (descriptor < 0) throw system_error(path, "cannot be opened", errno);
  Hasher hasher;
  constexpr size_t kBuffer = size_t{64} << 10;
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(kBuffer);
  for (;;) {
    const ssize_t count = uninterrupted([&] { return read(descriptor, buffer.get(), kBuffer); });
    if (count < 0) {
      const int error = errno;
      close(descriptor);
      throw system_error(path, "cannot be read", error);
    }
    if (count == 0) break;
    hasher.update(std::span(buffer.get(), static_cast<size_t>(count)));
  }
  close(descriptor);
  return hasher.hex();
}

}  // namespace nibble
