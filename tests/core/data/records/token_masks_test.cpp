// TRL's masks beside input_ids.

#include <gmock/gmock.h>

#include "nibble/core/base/error.h"
#include "nibble/core/data/records/format.h"
#include "nibble/tests/core/data/byte_encoder.h"

namespace nibble {
namespace {

using test::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

EncodedRecord encode(const std::string& json) {
  const Encoder encoder = test::byte_encoder();
  return encode_record(render_record("f", {json, 1, 1}, DataFormat::tokens, {}, encoder), encoder);
}

TEST(TokenMasks, LeaveWhatIsTrained) {
  EXPECT_THAT(encode(R"({"input_ids": [1, 5, 6, 7], "assistant_masks": [0, 0, 0, 1]})").labels,
              ElementsAre(-100, -100, -100, 7));
  EXPECT_THAT(encode(R"({"input_ids": [1, 5, 6, 7], "completion_mask": [false, true, true, true]})").labels,
              ElementsAre(-100, 5, 6, 7));
  EXPECT_THAT(encode(R"({"input_ids": [1, 5, 6], "completion_mask": null})").labels, ElementsAre(1, 5, 6));
  EXPECT_TRUE(encode(R"({"input_ids": [5, 257], "assistant_masks": [0, 1]})").empty_answer);
}

TEST(TokenMasks, AllHold) {
  const EncodedRecord record = encode(R"({"input_ids": [1, 5, 6, 7], "labels": [1, 5, 6, -100],
                                          "assistant_masks": [1, 0, 1, 1], "completion_mask": [0, 1, 1, 1]})");
  EXPECT_THAT(record.labels, ElementsAre(-100, -100, 6, -100));
  const EncodedRecord group = encode(R"({"input_ids": [[1, 5], [1, 6]], "assistant_masks": [[0, 1], [1, 0]]})");
  EXPECT_THAT(group.labels, ElementsAre(-100, 5));
  EXPECT_THAT(group.others.at(0).labels, ElementsAre(1, -100));
}

TEST(TokenMasks, ThatDoNotFitAreRefused) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {R"({"input_ids": [1, 2], "assistant_masks": [1]})", "has 2 input_ids, but 1 assistant_masks"},
      {R"({"input_ids": [1, 2], "completion_mask": [0, 2]})", "completion_mask[1] is 2, expected 0 or 1"},
      {R"({"input_ids": [1, 2], "completion_mask": [0, "1"]})", "\"completion_mask[1]\" is string, expected 0 or 1"},
      {R"({"input_ids": [1, 2], "assistant_masks": 1})", "\"assistant_masks\" is number, expected an array"},
      {R"({"input_ids": [[1], [2]], "assistant_masks": [[1]]})", "2 lists of input_ids, but 1 of assistant_masks"},
      {R"({"input_ids": [[1], [2]], "assistant_masks": [[1], 1]})", "\"assistant_masks[1]\" is number, expected a"}};
  for (const auto& [json, reason] : wrong) {
    EXPECT_THAT(error_of<InputError>([&] { encode(json); }), HasSubstr(reason)) << json;
  }
}

}  // namespace
}  // namespace nibble
