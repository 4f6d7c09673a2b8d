#include "nibble/core/io/compression.h"

#include <snappy.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "nibble/core/base/error.h"

namespace nibble {

namespace {

constexpr int kGzip = 15 + 16;        // zlib: the largest window, a gzip header
constexpr int kGzipOrZlib = 15 + 32;  // Parquet's writers use either

// What zlib takes at once.
uInt portion(size_t bytes) { return static_cast<uInt>(std::min<size_t>(bytes, std::numeric_limits<uInt>::max())); }

class GzipUnpacker final : public StreamUnpacker {
 public:
  explicit GzipUnpacker(std::string path) : path_(std::move(path)) {
    if (inflateInit2(&stream_, kGzip) != Z_OK) throw IoError(path_, "zlib has no memory", "free memory");
  }
  ~GzipUnpacker() override { inflateEnd(&stream_); }
  GzipUnpacker(const GzipUnpacker&) = delete;
  GzipUnpacker& operator=(const GzipUnpacker&) = delete;

  size_t unpack(std::span<const char>& packed, std::span<char> out) override {
    if (whole_ && !packed.empty()) {  // the next member
      inflateReset(&stream_);
      whole_ = false;
    }
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
    stream_.avail_in = portion(packed.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = portion(out.size());
    const uInt before = stream_.avail_in, room = stream_.avail_out;
    const int result = inflate(&stream_, Z_NO_FLUSH);
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
      throw InputError(path_, std::string("holds broken gzip data: ") + (stream_.msg ? stream_.msg : "no dictionary"),
                       "download or copy it again");
    }
    whole_ = result == Z_STREAM_END;
    packed = packed.subspan(before - stream_.avail_in);
    return room - stream_.avail_out;
  }
  bool is_whole() const override { return whole_; }

 private:
  std::string path_;
  z_stream stream_{};
  bool whole_ = false;
};

class ZstdUnpacker final : public StreamUnpacker {
 public:
  explicit ZstdUnpacker(std::string path) : path_(std::move(path)) {
    if (!stream_) throw IoError(path_, "libzstd has no memory", "free memory");
  }

  size_t unpack(std::span<const char>& packed, std::span<char> out) override {
    ZSTD_inBuffer in{packed.data(), packed.size(), 0};
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    const size_t result = ZSTD_decompressStream(stream_.get(), &to, &in);
    if (ZSTD_isError(result)) {
      throw InputError(path_, std::string("holds broken Zstandard data: ") + ZSTD_getErrorName(result),
                       "download or copy it again");
    }
    if (in.pos > 0 || to.pos > 0) whole_ = result == 0;
    packed = packed.subspan(in.pos);
    return to.pos;
  }
  bool is_whole() const override { return whole_; }

 private:
  struct Free {
    void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
  };
  std::string path_;
  std::unique_ptr<ZSTD_DStream, Free> stream_{ZSTD_createDStream()};
  bool whole_ = false;
};

bool unpack_gzip(std::span<const std::byte> packed, std::span<std::byte> out) {
  if (packed.size() > std::numeric_limits<uInt>::max() || out.size() > std::numeric_limits<uInt>::max()) return false;
  z_stream stream{};
  if (inflateInit2(&stream, kGzipOrZlib) != Z_OK) return false;
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed.data()));
  stream.avail_in = portion(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = portion(out.size());
  const bool whole = inflate(&stream, Z_FINISH) == Z_STREAM_END && stream.avail_out == 0;
  inflateEnd(&stream);
  return whole;
}

bool unpack_snappy(std::span<const std::byte> packed, std::span<std::byte> out) {
  const auto* bytes = reinterpret_cast<const char*>(packed.data());
  size_t size = 0;
  return snappy::GetUncompressedLength(bytes, packed.size(), &size) && size == out.size() &&
         snappy::RawUncompress(bytes, packed.size(), reinterpret_cast<char*>(out.data()));
}

}  // namespace

std::unique_ptr<StreamUnpacker> StreamUnpacker::open(std::string_view begin, const std::string& path) {
  if (begin.starts_with("\x1f\x8b")) return std::make_unique<GzipUnpacker>(path);
  // A frame of Zstandard, or one to be skipped, with which pzstd begins.
  const bool skipped = begin.size() >= 4 && (begin[0] & 0xf0) == 0x50 && begin.substr(1, 3) == "\x2a\x4d\x18";
  if (skipped || begin.starts_with("\x28\xb5\x2f\xfd")) return std::make_unique<ZstdUnpacker>(path);
  return nullptr;
}

bool unpack_block(BlockCodec codec, std::span<const std::byte> packed, std::span<std::byte> out) {
  switch (codec) {
    case BlockCodec::snappy:
      return unpack_snappy(packed, out);
    case BlockCodec::gzip:
      return unpack_gzip(packed, out);
    case BlockCodec::zstd:
      return ZSTD_decompress(out.data(), out.size(), packed.data(), packed.size()) == out.size();
    default:
      if (packed.size() != out.size()) return false;
      std::copy(packed.begin(), packed.end(), out.begin());
      return true;
  }
}

}  // namespace nibble
