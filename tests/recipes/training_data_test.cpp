// What is asked of the data before a run begins.

#include "nibble/recipes/training/training_data.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "nibble/core/data/encoder.h"
#include "nibble/recipes/models/open_model.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using nlohmann::json;

// The head of Apertus 1.5 has no rows for tokens of pictures and sound, which may stand in a context.
TEST(TrainingData, TrainsNoTokenThatTheHeadDoesNotKnow) {
  const std::string model = std::string(kSourceDir) + "/tests/data/goldens/model_types/apertus1p5_text/model";
  const auto read = [&](const std::vector<int>& ids, const std::vector<int>& labels) {
    const test::TemporaryDirectory directory;
    const std::string file = (directory.path() / "d.jsonl").string();
    test::write_bytes(file, json{{"input_ids", ids}, {"labels", labels}}.dump() + "\n");
    const json text = {{"model", {{"path", model}}},
                       {"adapter", {{"r", 2}}},
                       {"data", {{"train", file}, {"format", "tokens"}}},
                       {"train", {{"steps", 1}}},
                       {"output", {{"dir", "none"}}}};
    const Recipe recipe = parse_recipe(text.dump(), "test");
    const DecoderConfig config = model_config(recipe.model);
    TrainingData(recipe, config, make_ids_encoder(config.vocab_size, model), Observer{});
  };
  read({5, 95, 6, 89}, {5, -100, 6, 89});
  EXPECT_THAT(test::error_of<InputError>([&] {
                read({5, 95, 6}, {5, 95, 6});
              }),
              testing::HasSubstr("trains token 95, but the model's head has rows for the first 90 alone"));
}

}  // namespace
}  // namespace nibble
