// Published test vectors (llama.cpp's models/ggml-vocab-*.inp and .out): ids of strings that are hard to cut.

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <sstream>

#include "nibble/core/text/tokenizers/tokenizer.h"
#include "nibble/tests/assets.h"

namespace nibble {
namespace {

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> inputs(const std::string& text) {
  const std::string between = "\n__ggml_vocab_test__\n";
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end = text.find(between); end != std::string::npos; end = text.find(between, begin)) {
    parts.push_back(text.substr(begin, end - begin));
    begin = end + between.size();
  }
  return parts;
}

void expect_vectors(const std::filesystem::path& vectors, const Tokenizer& tokenizer) {
  std::ifstream expected(vectors.string() + ".out");
  size_t count = 0;
  for (const std::string& input : inputs(text_of(vectors.string() + ".inp"))) {
    std::string line;
    ASSERT_TRUE(std::getline(expected, line));
    std::istringstream numbers(line);
    const std::vector<int32_t> ids{std::istream_iterator<int32_t>(numbers), {}};
    EXPECT_EQ(tokenizer.encode(input, false), ids) << vectors << ": " << input;
    ++count;
  }
  EXPECT_GT(count, 40U);
}

TEST(TokenizerVectors, Gpt2FromTokenizerJson) {
  NIBBLE_ASSET_OR_SKIP(vectors, "ggml-vocab");
  NIBBLE_ASSET_OR_SKIP(model, "tok-gpt2");
  expect_vectors(vectors / "ggml-vocab-gpt-2.gguf", *load_tokenizer(model));
}

TEST(TokenizerVectors, Gpt2AndLlama2FromTheGgufFilesThemselves) {
  NIBBLE_ASSET_OR_SKIP(vectors, "ggml-vocab");
  for (const char* file : {"ggml-vocab-gpt-2.gguf", "ggml-vocab-llama-spm.gguf"}) {
    expect_vectors(vectors / file, *load_tokenizer(vectors / file));
  }
}

TEST(TokenizerVectors, Qwen2FromVocabAndMerges) {
  NIBBLE_ASSET_OR_SKIP(vectors, "ggml-vocab");
  NIBBLE_ASSET_OR_SKIP(model, "tok-qwen2");
  expect_vectors(vectors / "ggml-vocab-qwen2.gguf", *load_tokenizer(model));
}

TEST(TokenizerVectors, Llama2FromSentencepiece) {
  NIBBLE_ASSET_OR_SKIP(vectors, "ggml-vocab");
  NIBBLE_ASSET_OR_SKIP(model, "tok-llama2-spm");
  expect_vectors(vectors / "ggml-vocab-llama-spm.gguf", *load_tokenizer(model));
}

TEST(TokenizerVectors, TheSameVocabularyGivesTheSameIdsFromBothItsFiles) {
  NIBBLE_ASSET_OR_SKIP(vectors, "ggml-vocab");
  NIBBLE_ASSET_OR_SKIP(model, "tok-tinyllama-hf");
  expect_vectors(vectors / "ggml-vocab-llama-spm.gguf", *load_tokenizer(model / "tinyllama_tokenizer.json"));
}

}  // namespace
}  // namespace nibble
