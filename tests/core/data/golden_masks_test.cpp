// Real data sets, encoded with GPT-2's tokenizer: ids and label masks as tests/oracles/data_masks.py makes them with
// Hugging Face's tokenizers.

#include <gtest/gtest.h>

#include "nibble/core/data/dataset.h"
#include "nibble/core/text/tokenizers/tokenizer.h"
#include "nibble/tests/assets.h"

namespace nibble {
namespace {

struct Golden {
  const char* file;
  int64_t samples, tokens, trained;
  uint64_t hash;  // FNV-1a of id, label, id, label, ... as 32-bit words
};

constexpr Golden kGolden[] = {
    {"data-llamafactory-demo/alpaca_en_demo.json", 999, 207002, 152427, 0x84cbac8a9c6a8faaull},
    {"data-gsm8k/test.jsonl", 1319, 211302, 130137, 0x65ff168e61fea801ull},
    {"data-llamafactory-demo/c4_demo.jsonl", 300, 161482, 161182, 0xd297fbbf9ebda451ull},
    {"data-llamafactory-demo/v1_sft_demo.jsonl", 500, 94051, 71295, 0xeddfc9ae5a1de2b2ull},
};

uint64_t hash_of(const Dataset& dataset) {
  uint64_t hash = 0xcbf29ce484222325ull;
  const auto add = [&](int32_t number) { hash = (hash ^ static_cast<uint32_t>(number)) * 0x100000001b3ull; };
  for (int64_t i = 0; i < dataset.size(); ++i) {
    const Sample sample = dataset.sample(i);
    for (size_t t = 0; t < sample.ids.size(); ++t) {
      add(sample.ids[t]);
      add(sample.labels[t]);
    }
  }
  return hash;
}

TEST(GoldenMasks, IdsAndMasksAreThoseOfHuggingFacesTokenizers) {
  NIBBLE_ASSET_OR_SKIP(tokenizer_directory, "tok-gpt2");
  NIBBLE_ASSET_OR_SKIP(assets, "");
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(tokenizer_directory);
  const std::shared_ptr<const ChatTemplate> chatml = builtin_chat_template("chatml", template_tokens(*tokenizer));
  const Encoder encoder = make_encoder(tokenizer, chatml, 50257);
  DataOptions options;
  options.max_length = 1 << 20;
  for (const Golden& golden : kGolden) {
    const Dataset dataset = Dataset::load({{(assets / golden.file).string(), 1.0}}, options, encoder);
    EXPECT_EQ(dataset.size(), golden.samples) << golden.file;
    EXPECT_EQ(dataset.report().tokens, golden.tokens) << golden.file;
    EXPECT_EQ(dataset.report().trained_tokens, golden.trained) << golden.file;
    EXPECT_EQ(hash_of(dataset), golden.hash) << golden.file;
  }
}

}  // namespace
}  // namespace nibble
