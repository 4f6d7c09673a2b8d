// Data sets in the usual formats, encoded byte by byte: ids and label masks as tests/oracles/data_masks.py makes them
// with Hugging Face's tokenizers.

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
    {"sums/alpaca.json", 460, 83164, 25688, 0xfa96f601db7ecc7aull},
    {"sums/test.jsonl", 60, 6668, 3541, 0xcce580266c8ab065ull},
    {"stories/texts.jsonl", 40, 3939, 3899, 0xc0226dea74bd4f4bull},
    {"stories/chats.jsonl", 40, 8664, 2778, 0x9a574b9c4cf18a7full},
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
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(test::data_path("tokenizers/gpt2"));
  const std::shared_ptr<const ChatTemplate> chatml = builtin_chat_template("chatml", template_tokens(*tokenizer));
  const Encoder encoder = make_encoder(tokenizer, chatml, tokenizer->vocab_size());
  DataOptions options;
  options.max_length = 1 << 20;
  for (const Golden& golden : kGolden) {
    const Dataset dataset = Dataset::load({{test::data_path(golden.file).string(), 1.0}}, options, encoder);
    EXPECT_EQ(dataset.size(), golden.samples) << golden.file;
    EXPECT_EQ(dataset.report().tokens, golden.tokens) << golden.file;
    EXPECT_EQ(dataset.report().trained_tokens, golden.trained) << golden.file;
    EXPECT_EQ(hash_of(dataset), golden.hash) << golden.file;
  }
}

}  // namespace
}  // namespace nibble
