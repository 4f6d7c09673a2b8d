#include "nibble/core/text/tokenizers/sentencepiece/sentencepiece_model.h"

#include <cmath>
#include <cstring>
#include <string_view>

#include "nibble/core/base/error.h"
#include "nibble/core/text/unicode/utf8.h"

namespace nibble {

namespace {

constexpr size_t kMaxPieces = 4 << 20;

enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

struct Field {
  uint32_t number = 0;
  uint32_t wire = 0;
  uint64_t value = 0;      // kVarint, kFixed32, kFixed64
  std::string_view bytes;  // kBytes
};

// The fields of one message, in order. Positions in errors count from the start of the file.
class Walker {
 public:
  Walker(std::string_view message, const char* file_start, const std::string& place)
      : rest_(message), file_start_(file_start), place_(place) {}

  bool next(Field& field) {
    if (rest_.empty()) return false;
    start_ = rest_.data();
    const uint64_t key = varint();
    field = Field{static_cast<uint32_t>(key >> 3), static_cast<uint32_t>(key & 7)};
    if (key >> 32 != 0 || field.number == 0) fail("has a field with an impossible number");
    switch (field.wire) {
      case kVarint:
        field.value = varint();
        break;
      case kFixed64:
        field.value = fixed(8);
        break;
      case kFixed32:
        field.value = fixed(4);
        break;
      case kBytes: {
        const uint64_t length = varint();
        if (length > rest_.size()) fail("has a field that is longer than the file");
        field.bytes = take(length);
        break;
      }
      default:
        fail("has a field of an unknown kind");
    }
    return true;
  }

  void expect(const Field& field, WireType wire) const {
    if (field.wire != wire) fail("has a field of the wrong kind");
  }

  Walker inside(const Field& field) const {
    expect(field, kBytes);
    return Walker(field.bytes, file_start_, place_);
  }

  [[noreturn]] void fail(const std::string& reason) const {
    throw InputError(place_,
                     "is no usable sentencepiece model: byte " + std::to_string(start_ - file_start_) + " " + reason,
                     "get the file again");
  }

 private:
  std::string_view take(uint64_t count) {
    if (count > rest_.size()) fail("ends in the middle of a field");
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      if (shift == 63 && byte > 1) break;
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    fail("has a number of more than 64 bits");
  }

  uint64_t fixed(size_t size) {
    uint64_t value = 0;
    std::memcpy(&value, take(size).data(), size);
    return value;
  }

  std::string_view rest_;
  const char* file_start_;
  const char* start_ = file_start_;
  const std::string& place_;
};

SentencePieceEntry read_piece(Walker walker) {
  SentencePieceEntry piece;
  Field field;
  while (walker.next(field)) {
    if (field.number == 1) {
      walker.expect(field, kBytes);
      piece.text = field.bytes;
    } else if (field.number == 2) {
      walker.expect(field, kFixed32);
      const auto bits = static_cast<uint32_t>(field.value);
      std::memcpy(&piece.score, &bits, sizeof bits);
    } else if (field.number == 3) {
      walker.expect(field, kVarint);
      if (field.value < 1 || field.value > 6) walker.fail("has a piece of an unknown type");
      piece.kind = static_cast<PieceKind>(field.value);
    }
  }
  if (piece.text.empty()) walker.fail("has an empty piece");
  // The library's trie takes pieces as C strings: a NUL would make another, or an empty, piece of it.
  if (piece.text.find('\0') != std::string::npos) walker.fail("has a piece with a NUL in it");
  if (first_invalid_utf8(piece.text) != piece.text.size()) walker.fail("has a piece that is not UTF-8");
  if (!std::isfinite(piece.score)) walker.fail("has a piece whose score is not finite");
  return piece;
}

void read_normalizer(Walker walker, SentencePieceNormalizer& normalizer) {
  Field field;
  while (walker.next(field)) {
    if (field.number == 2) {
      walker.expect(field, kBytes);
      if (const std::string flaw = find_charsmap_flaw(field.bytes); !flaw.empty())
        walker.fail("has a normalization table " + flaw);
      normalizer.charsmap = field.bytes;
    } else if (field.number >= 3 && field.number <= 5) {
      walker.expect(field, kVarint);
      bool& flag = field.number == 3   ? normalizer.add_dummy_prefix
                   : field.number == 4 ? normalizer.remove_extra_whitespaces
                                       : normalizer.escape_whitespaces;
      flag = field.value != 0;
    }
  }
}

void read_trainer(Walker walker, SentencePieceModel& model) {
  Field field;
  while (walker.next(field)) {
    if (field.number != 3 && field.number != 24 && field.number != 35) continue;
    walker.expect(field, kVarint);
    if (field.number == 3) {
      if (field.value < 1 || field.value > 4) walker.fail("has an unknown kind of model");
      model.algorithm = static_cast<SentencePieceAlgorithm>(field.value);
    } else {
      (field.number == 24 ? model.whitespace_as_suffix : model.byte_fallback) = field.value != 0;
    }
  }
}

}  // namespace

std::string find_charsmap_flaw(std::string_view blob) {
  if (blob.empty()) return "";
  uint32_t trie_bytes = 0;
  if (blob.size() < sizeof trie_bytes) return "that is too short";
  std::memcpy(&trie_bytes, blob.data(), sizeof trie_bytes);
  blob.remove_prefix(sizeof trie_bytes);
  if (trie_bytes > blob.size() || trie_bytes % 4 != 0 || trie_bytes < 4) return "whose trie does not fit";
  const std::string_view trie = blob.substr(0, trie_bytes), strings = blob.substr(trie_bytes);
  if (strings.empty() || strings.back() != '\0') return "whose strings do not end";

  const size_t count = trie.size() / 4;
  const auto unit_at = [&](size_t k) {
    uint32_t unit = 0;
    std::memcpy(&unit, trie.data() + 4 * k, sizeof unit);
    return unit;
  };
  for (size_t k = 0; k < count; ++k) {
    const uint32_t unit = unit_at(k);
    // A unit with the top bit is a leaf; a search never steps on from it, but from the root it does in any case.
    if (unit >> 31 != 0 && k != 0) continue;
    const size_t children = k ^ static_cast<size_t>(static_cast<uint32_t>((unit >> 10) << ((unit & (1U << 9)) >> 6)));
    if ((children | 0xFF) >= count) return "that points outside of itself";
    if ((unit >> 8 & 1) != 0 && (unit_at(children) & 0x7FFFFFFF) >= strings.size())
      return "that points outside of its strings";
  }
  return "";
}

SentencePieceModel check_sentencepiece_model(std::string bytes, const std::string& place) {
  SentencePieceModel model;
  model.bytes = std::move(bytes);
  Walker walker(model.bytes, model.bytes.data(), place);
  Field field;
  size_t unknown_pieces = 0;
  SentencePieceNormalizer denormalizer;
  while (walker.next(field)) {
    if (field.number == 1) {
      if (model.pieces.size() >= kMaxPieces) walker.fail("is past the largest number of pieces");
      model.pieces.push_back(read_piece(walker.inside(field)));
      unknown_pieces += model.pieces.back().kind == PieceKind::kUnknown;
    } else if (field.number == 2) {
      read_trainer(walker.inside(field), model);
    } else if (field.number == 3) {
      read_normalizer(walker.inside(field), model.normalizer);
    } else if (field.number == 5) {
      read_normalizer(walker.inside(field), denormalizer);
    }
  }
  if (model.pieces.empty())
    throw InputError(place, "is no sentencepiece model: it has no pieces", "get the file again");
  if (unknown_pieces != 1)
    throw InputError(
        place,
        "is no usable sentencepiece model: it has " + std::to_string(unknown_pieces) + " unknown pieces instead of one",
        "get the file again");
  return model;
}

}  // namespace nibble
