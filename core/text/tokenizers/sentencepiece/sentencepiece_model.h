#pragma once
// A strict reader of sentencepiece's tokenizer.model, run before the library sees the file.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

/// What a piece is (SentencePiece.Type of sentencepiece_model.proto).
enum class PieceKind { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

struct SentencePieceEntry {
  std::string text;
  float score = 0;
  PieceKind kind = PieceKind::kNormal;
};

/// NormalizerSpec: what is done to a text before it is cut.
struct SentencePieceNormalizer {
  std::string charsmap;  ///< precompiled rules; empty = none
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

enum class SentencePieceAlgorithm { kUnigram = 1, kBpe = 2, kWord = 3, kChar = 4 };

/// A checked model file: `bytes` may be handed to the library.
struct SentencePieceModel {
  std::string bytes;
  std::vector<SentencePieceEntry> pieces;
  SentencePieceAlgorithm algorithm = SentencePieceAlgorithm::kUnigram;
  SentencePieceNormalizer normalizer;
  bool byte_fallback = false;
  bool whitespace_as_suffix = false;
};

/// What is wrong with a precompiled_charsmap (a u32 size, a double-array trie in darts-clone's layout, and the
/// NUL-terminated strings that its leaves point to): offsets that lead outside of it; "" when nothing is.
std::string find_charsmap_flaw(std::string_view blob);

/// Walks the protocol buffer and checks all that the library takes on trust: lengths, wire types, number and text of
/// pieces, scores, and the precompiled normalization tables, whose offsets sentencepiece 0.1.97 follows without looking
/// (a hostile table makes it read outside of the buffer). Throws InputError with `place` and the byte offset.
SentencePieceModel check_sentencepiece_model(std::string bytes, const std::string& place);

}  // namespace nibble
