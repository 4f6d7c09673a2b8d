#include "nibble/recipes/preferences/objective_samples.h"

#include <gmock/gmock.h>

#include "nibble/tests/core/data/byte_encoder.h"

namespace nibble {
namespace {

TEST(ObjectiveSamples, AnAnswerCutBehindItsOwnPromptIsWholeBehindAShorterOne) {
  test::Files files;
  DataOptions data;
  data.format = DataFormat::unpaired;
  data.max_length = 6;
  data.truncate = Truncate::cut;
  data.train = {{files.write("a.jsonl",
                             R"({"prompt_ids": [1, 2, 3, 4], "completion_ids": [5, 6, 7, 8], "label": true}
{"prompt_ids": [9], "completion_ids": [10, 11], "label": false})")}};
  const Dataset dataset = Dataset::load(data.train, data, test::byte_encoder());
  EXPECT_THAT(dataset.sample(0).ids, testing::ElementsAre(1, 2, 3, 4, 5, 6));
  ObjectiveOptions kto;
  kto.type = ObjectiveType::kto;
  const ObjectiveSamples samples(kto, dataset, data.max_length, 2);
  EXPECT_THAT(samples.surveyed(0).ids, testing::ElementsAre(1, 2, 3, 4, 10, 11));
  EXPECT_THAT(samples.surveyed(1).ids, testing::ElementsAre(9, 5, 6, 7, 8));
  EXPECT_THAT(samples.surveyed(1).labels, testing::ElementsAre(kIgnoreLabel, 5, 6, 7, 8));
}

}  // namespace
}  // namespace nibble
