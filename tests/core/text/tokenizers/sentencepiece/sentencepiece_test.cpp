// tokenizer.model through libsentencepiece: ids, offsets, control tokens, broken files.

#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include <fstream>
#include <iterator>
#include <span>

#include "nibble/core/base/error.h"
#include "nibble/core/text/tokenizers/sentencepiece/sentencepiece_tokenizer.h"
#include "nibble/core/text/tokenizers/tokenizer.h"
#include "nibble/core/text/unicode/utf8.h"
#include "nibble/tests/assets.h"

namespace nibble {
namespace {

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(SentencePiece, EncodesAsTheLibraryWithBosInFront) {
  const std::filesystem::path llama = test::data_path("tokenizers/spm-bpe");
  const auto tokenizer = load_tokenizer(llama);
  EXPECT_EQ(tokenizer->vocab_size(), 1500);
  EXPECT_EQ(tokenizer->bos_id(), 1);
  EXPECT_EQ(tokenizer->eos_id(), 2);
  EXPECT_FALSE(tokenizer->pad_id().has_value());
  EXPECT_EQ(tokenizer->encode("Hello world"), (std::vector<int32_t>{1, 601, 603}));
  EXPECT_EQ(tokenizer->encode("Hello world", false), (std::vector<int32_t>{601, 603}));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("Hello world"), true), "Hello world");
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("Hello world")), "<s>Hello world");
  EXPECT_EQ(tokenizer->token(601), "\xE2\x96\x81Hello");
  EXPECT_EQ(tokenizer->id_of("\xE2\x96\x81Hello"), 601);
  EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{1500}), InputError);
}

// Our encoder against the library: byte-pair encoding to the token, unigram to the score of the path (of two paths with
// the same score the packaged library takes another one than its later versions).
TEST(SentencePiece, CutsTextAsTheLibraryDoes) {
  const std::filesystem::path folder = test::data_path("tokenizers");
  for (const char* name : {"spm-bpe/tokenizer.model", "spm-unigram-en.model", "spm-unigram-ja.model"}) {
    const std::filesystem::path path = folder / name;
    const auto tokenizer = load_tokenizer(path);
    sentencepiece::SentencePieceProcessor library;
    ASSERT_TRUE(library.Load(path.string()).ok());
    const auto score = [&](const std::vector<int>& ids) {
      double sum = 0;
      for (const int id : ids) sum += library.GetScore(id);
      return sum;
    };
    std::ifstream file(folder / "lines.txt");
    std::string line;
    size_t lines = 0, same = 0;
    while (std::getline(file, line) && lines < 1000) {
      std::vector<int> ids;
      ASSERT_TRUE(library.Encode(line, &ids).ok());
      const std::vector<int32_t> ours = tokenizer->encode(line, false);
      same += ours == ids;
      EXPECT_NEAR(score(ours), score(ids), 1e-3) << line;
      EXPECT_EQ(tokenizer->decode(ours, true), library.DecodeIds(ids));
      ++lines;
    }
    EXPECT_EQ(lines, 1000U);
    EXPECT_GE(same, std::string(name).starts_with("spm-bpe") ? lines : lines * 99 / 100) << path;
  }
}

// Blanks in a row, in front and behind, marks and unknown characters among them, and no blank for longer than a window.
std::string long_text() {
  const std::vector<std::string> lines = test::data_lines("tokenizers/lines.txt");
  std::string text = "  ";
  for (size_t k = 0; text.size() < size_t{600} << 10; ++k) {
    text += lines[k % lines.size()] + std::string(k % 4, k % 3 == 0 ? ' ' : '\n');
    if (k % 50 == 0) text += "\xE2\x96\x81\xE2\x96\x81 \xF0\x9F\xA7\xAC\xF0\x9F\xA7\xAC \xF0\x9F\xA7\xAC ";
    if (k == 400) text += std::string(100000, 'a');
  }
  return text + " \xE2\x96\x81 ";
}

std::vector<TokenSpan> in_pieces(const Tokenizer& tokenizer, const std::string& text, size_t& pieces) {
  std::vector<TokenSpan> tokens;
  pieces = 0;
  tokenizer.encode_in_pieces(text, [&](std::span<const TokenSpan> some) {
    tokens.insert(tokens.end(), some.begin(), some.end());
    ++pieces;
  });
  return tokens;
}

// A piece with a blank behind a letter keeps a text in one piece; as an unused one it is in no path.
TEST(SentencePiece, ALongTextGoesThroughInWindowsAndHasTheTokensOfTheWhole) {
  const std::string unused("\x0A\x0E\x0A\x05x\xE2\x96\x81y\x15\x00\x00\x00\x00\x18\x05", 16);
  const std::filesystem::path folder = test::data_path("tokenizers");
  const std::string text = long_text();
  for (const char* name : {"spm-bpe/tokenizer.model", "spm-unigram-en.model", "spm-unigram-ja.model"}) {
    const std::string model = bytes_of(folder / name);
    size_t pieces = 0;
    const std::vector<TokenSpan> whole = in_pieces(*open_sentencepiece(model + unused, name, true), text, pieces);
    EXPECT_EQ(pieces, 1U) << name;
    const std::vector<TokenSpan> tokens = in_pieces(*open_sentencepiece(model, name, true), text, pieces);
    EXPECT_GT(pieces, 3U) << name;
    ASSERT_EQ(tokens.size(), whole.size()) << name;
    for (size_t k = 0; k < tokens.size(); ++k) {
      ASSERT_EQ(tokens[k].id, whole[k].id) << name << " token " << k;
      ASSERT_EQ(tokens[k].begin, whole[k].begin) << name << " token " << k;
      ASSERT_EQ(tokens[k].end, whole[k].end) << name << " token " << k;
    }
  }
}

TEST(SentencePiece, ALongTextHasTheIdsOfTheLibrary) {
  const std::filesystem::path path = test::data_path("tokenizers/spm-bpe/tokenizer.model");
  sentencepiece::SentencePieceProcessor library;
  ASSERT_TRUE(library.Load(path.string()).ok());
  const std::string text = long_text();
  std::vector<int> ids;
  ASSERT_TRUE(library.Encode(text, &ids).ok());
  EXPECT_TRUE(load_tokenizer(path)->encode(text, false) == ids);
}

TEST(SentencePiece, ControlTokensInTheTextAreTokens) {
  const std::filesystem::path llama = test::data_path("tokenizers/spm-bpe");
  const auto tokenizer = load_tokenizer(llama);
  const std::vector<TokenSpan> tokens = tokenizer->encode_with_offsets("Hello</s>world", false);
  ASSERT_EQ(tokens.size(), 3U);
  EXPECT_EQ(tokens[1].id, 2);
  EXPECT_EQ(tokens[1].begin, 5);
  EXPECT_EQ(tokens[1].end, 9);
  EXPECT_EQ(tokens[2].id, tokenizer->id_of("\xE2\x96\x81world"));
  EXPECT_EQ(tokens[2].end, 14);
}

TEST(SentencePiece, TheBlankInFrontComesOnceWhenNotLegacy) {
  const std::filesystem::path llama = test::data_path("tokenizers/spm-bpe");
  const auto tokenizer = open_sentencepiece(bytes_of(llama / "tokenizer.model"), "model", false);
  const std::vector<int32_t> ids = tokenizer->encode("Hello</s>world", false);
  ASSERT_EQ(ids.size(), 3U);
  EXPECT_EQ(tokenizer->token(ids[0]), "\xE2\x96\x81Hello");
  EXPECT_EQ(tokenizer->token(ids[2]), "world");
  EXPECT_EQ(tokenizer->decode(ids), "Hello</s>world");
}

TEST(SentencePiece, OffsetsCoverTheText) {
  const std::filesystem::path llama = test::data_path("tokenizers/spm-bpe");
  const auto tokenizer = load_tokenizer(llama);
  const std::string text = "A caf\xC3\xA9 \xF0\x9F\x98\x80 at night";
  int64_t position = 0;
  for (const TokenSpan& token : tokenizer->encode_with_offsets(text, false)) {
    EXPECT_LE(token.begin, position);
    position = std::max(position, token.end);
  }
  EXPECT_EQ(position, static_cast<int64_t>(text.size()));
}

TEST(SentencePiece, StreamedPiecesAreTheDecodedText) {
  const std::filesystem::path llama = test::data_path("tokenizers/spm-bpe");
  const auto tokenizer = load_tokenizer(llama);
  const std::string text = "A caf\xC3\xA9 \xF0\x9F\x98\x80\xE2\x80\x8D\xF0\x9F\x91\xA9 at night";
  StreamDecoder stream(*tokenizer);
  std::string streamed;
  for (const int32_t id : tokenizer->encode(text)) {
    const std::string part = stream.push(id);
    EXPECT_EQ(part.find("\xEF\xBF\xBD"), std::string::npos);
    streamed += part;
  }
  EXPECT_EQ(streamed + stream.finish(), text);
}

// A broken byte makes U+FFFD of the letter in front of it, which is out already.
TEST(SentencePiece, StreamedPiecesAreTextBehindABrokenByteToo) {
  const auto tokenizer = load_tokenizer(test::data_path("tokenizers/spm-bpe"));
  const auto byte = [&](const char* name) { return *tokenizer->id_of(name); };
  const std::vector<int32_t> ids = {byte("<0x72>"), byte("<0xBF>"), byte("<0xBD>"), byte("<0x72>")};
  StreamDecoder stream(*tokenizer);
  std::string streamed;
  for (const int32_t id : ids) streamed += stream.push(id);
  streamed += stream.finish();
  EXPECT_EQ(first_invalid_utf8(streamed), streamed.size()) << streamed;
  EXPECT_TRUE(streamed.starts_with("r\xEF\xBF\xBD")) << streamed;
}

// Every prefix, and every byte changed: either an InputError or a tokenizer that works, never a crash.
TEST(SentencePiece, DamagedFilesAreRefusedOrHarmless) {
  const std::string good = bytes_of(test::data_path("tokenizers/spm-unigram-en.model"));
  ASSERT_GT(good.size(), 100000U);
  size_t refused = 0, tried = 0;
  const auto attempt = [&](std::string bytes) {
    ++tried;
    try {
      open_sentencepiece(std::move(bytes), "model")->encode("Hello, \xE2\x84\xA2 \xEF\xBC\xA1 w\xC3\xB6rld");
    } catch (const InputError&) {
      ++refused;
    }
  };
  for (size_t cut = 0; cut < good.size(); cut += 9973) attempt(good.substr(0, cut));
  for (size_t k = 0; k < good.size(); k += 997) {
    std::string bytes = good;
    bytes[k] = static_cast<char>(bytes[k] ^ 0xFF);
    attempt(std::move(bytes));
  }
  EXPECT_GT(refused, tried / 10);
}

TEST(SentencePiece, ATableThatPointsOutsideOfItselfIsRefused) {
  // One piece "a" (unknown), and a normalizer whose single trie unit points 2^20 units on.
  const std::string piece("\x0A\x05\x0A\x01\x61\x18\x02", 7);
  std::string blob("\x04\x00\x00\x00", 4);
  const uint32_t unit = (1U << 20) << 10;
  blob.append(reinterpret_cast<const char*>(&unit), 4);
  blob.append("x\0", 2);
  const std::string normalizer = std::string("\x12") + static_cast<char>(blob.size()) + blob;
  const std::string file = piece + "\x1A" + static_cast<char>(normalizer.size()) + normalizer;
  try {
    open_sentencepiece(file, "model");
    FAIL() << "accepted";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("points outside"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace nibble
