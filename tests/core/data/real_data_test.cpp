#include <gmock/gmock.h>

#include "nibble/core/data/batches.h"
#include "nibble/core/data/dataset.h"
#include "nibble/core/text/tokenizers/tokenizer.h"
#include "nibble/tests/assets.h"

namespace nibble {
namespace {

TEST(RealData, AFileOfTextBecomesFullSequences) {
  NIBBLE_ASSET_OR_SKIP(model, "stories260K-hf");
  NIBBLE_ASSET_OR_SKIP(stories, "data-tinystories-sample/tinystories_sample.txt");
  const std::shared_ptr<const Tokenizer> tokenizer = load_tokenizer(model);
  const Encoder encoder = make_encoder(tokenizer, nullptr, 512);
  EXPECT_THAT(encoder.prefix, ::testing::ElementsAre(1));
  EXPECT_EQ(encoder.eos, 2);
  const Dataset dataset = Dataset::load({{stories.string(), 1.0}}, {}, encoder);
  EXPECT_EQ(dataset.size(), 5) << "stories between <|endoftext|>";
  const Batches batches(dataset, {{.max_length = 128}, 1, 1});
  const int64_t tokens = dataset.report().tokens;
  EXPECT_EQ(batches.steps_in_epoch(0), (tokens + 127) / 128);
  for (int64_t i = 0; i < dataset.size(); ++i) {
    EXPECT_EQ(dataset.sample(i).ids.front(), 1);
    EXPECT_EQ(dataset.sample(i).ids.back(), 2);
  }
}

}  // namespace
}  // namespace nibble
