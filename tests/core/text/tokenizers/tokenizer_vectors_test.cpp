// Ids of strings that are hard to cut, as the libraries give them: tests/oracles/tokenizers_own.py.

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "nibble/core/text/tokenizers/tokenizer.h"
#include "nibble/tests/assets.h"

namespace nibble {
namespace {

/// The tokenizer at `path` of tests/data/tokenizers gives the ids of NAME.jsonl there.
void expect_vectors(const std::string& path, const std::string& name) {
  const std::filesystem::path folder = test::data_path("tokenizers");
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(folder / path);
  std::ifstream file(folder / (name + ".jsonl"));
  size_t count = 0;
  for (std::string line; std::getline(file, line); ++count) {
    const nlohmann::json vector = nlohmann::json::parse(line);
    EXPECT_EQ(tokenizer->encode(vector["text"].get<std::string>(), false), vector["ids"].get<std::vector<int32_t>>())
        << path << ": " << vector["text"];
  }
  EXPECT_GT(count, 80U);
}

TEST(TokenizerVectors, ByteLevelFromTokenizerJson) { expect_vectors("gpt2", "gpt2"); }

TEST(TokenizerVectors, ByteLevelFromVocabAndMerges) { expect_vectors("qwen2", "qwen2"); }

TEST(TokenizerVectors, SentencepieceFromItsModel) { expect_vectors("spm-bpe", "spm-bpe"); }

TEST(TokenizerVectors, SentencepiecesVocabularyGivesTheSameIdsFromTokenizerJson) {
  expect_vectors("spm-bpe.tokenizer.json", "spm-bpe");
}

TEST(TokenizerVectors, BothKindsFromGguf) {
  expect_vectors("gpt2.gguf", "gpt2");
  expect_vectors("spm-bpe.gguf", "spm-bpe");
}

}  // namespace
}  // namespace nibble
