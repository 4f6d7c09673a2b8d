#include "nibble/core/text/tokenizers/gguf_pre_tokenizers.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace nibble {
namespace {

TEST(GgufPreTokenizers, WhatANameIsReadAsIsWrittenAgainByTheFirstNameForIt) {
  const std::vector<std::pair<std::string, std::vector<const char*>>> known = {
      {"gpt-2", {"gpt-2", "phi-2", "mpt", "olmo"}},
      {"llama-bpe", {"llama-bpe", "llama3", "llama-v3"}},
      {"dbrx", {"dbrx", "smaug-bpe"}},
      {"qwen2", {"qwen2", "deepseek-r1-qwen", "stablelm2"}},
      {"gpt-4o", {"gpt-4o", "llama4"}},
      {"tekken", {"tekken"}},
      {"bloom", {"bloom"}},
      {"smollm", {"smollm", "starcoder", "refact", "command-r", "codeshell"}},
      {"falcon", {"falcon"}}};
  for (const auto& [written, names] : known) {
    for (const char* name : names) {
      const GgufPreTokenizer* row = find_gguf_pre_tokenizer(name);
      ASSERT_NE(row, nullptr) << name;
      std::vector<std::string> steps;
      for (const std::string& step : row->steps) steps.push_back(pre_tokenizer_step(pre_tokenizer_json(step)));
      const GgufPreTokenizer* again = match_gguf_pre_tokenizer(steps, row->ignore_merges);
      ASSERT_NE(again, nullptr) << name;
      EXPECT_EQ(again->names.front(), written) << name;
    }
  }
  EXPECT_EQ(find_gguf_pre_tokenizer("unheard"), nullptr);
  EXPECT_EQ(match_gguf_pre_tokenizer({"digits"}, false), nullptr);
}

TEST(GgufPreTokenizers, WholeWordsDecideOnlyWhereSeveralHaveTheSteps) {
  EXPECT_EQ(match_gguf_pre_tokenizer({"llama3", "bytes"}, true)->names.front(), "llama-bpe");
  EXPECT_EQ(match_gguf_pre_tokenizer({"llama3", "bytes"}, false)->names.front(), "dbrx");
  EXPECT_EQ(match_gguf_pre_tokenizer({"tekken", "bytes"}, false)->names.front(), "tekken");
  EXPECT_EQ(match_gguf_pre_tokenizer({"qwen2", "bytes"}, true)->names.front(), "qwen2");
}

}  // namespace
}  // namespace nibble
