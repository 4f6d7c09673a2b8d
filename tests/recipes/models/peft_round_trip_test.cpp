// Directories between nibble and PEFT, both ways: tests/oracles/peft_round_trip.py and its results.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "nibble/core/comm/local_rank.h"
#include "nibble/core/io/safetensors/safetensors.h"
#include "nibble/recipes/models/merge_model.h"
#include "nibble/recipes/models/open_model.h"
#include "nibble/recipes/train.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"
#include "nibble/tests/write_npy.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct PeftRoundTrip : testing::Test {
  const fs::path oracle = fs::path(kSourceDir) / "tests/data/goldens/peft_llama";
  test::TemporaryDirectory directory;
  LocalRank rank{1};
  SafetensorsFile results{(oracle / "logits.safetensors").string()};
  std::vector<std::vector<int32_t>> ids;

  PeftRoundTrip() {
    const Tensor array = results.at("input_ids");
    for (int64_t b = 0; b < array.dim(0); ++b) {
      const Tensor row = array.rows(b, b + 1);
      ids.emplace_back(row.data<const int64_t>(), row.data<const int64_t>() + row.numel());
    }
  }

  std::vector<float> logits(const fs::path& base, const fs::path& adapter) {
    ModelRecipe recipe;
    recipe.path = base.string();
    Decoder decoder = open_model(recipe, adapter.string(), Train::nothing, rank.context());
    const StepContext step{.rank = rank.context(), .compute_dtype = DType::f32};
    std::vector<float> all;
    for (const std::vector<int32_t>& row : ids) {
      const Sample sample{.ids = row};
      const Batch batch = make_batch({&sample, 1}, rank.context().pool);
      decoder.logits(batch, step, [&](int64_t, const Tensor& chunk) {
        all.insert(all.end(), chunk.data<const float>(), chunk.data<const float>() + chunk.numel());
      });
    }
    return all;
  }

  /// The adapter of a run on the ids.
  fs::path trained(const json& adapter) {
    const fs::path data = directory / "data.jsonl", run = directory / "run";
    std::string lines;
    for (const std::vector<int32_t>& row : ids) lines += json{{"input_ids", row}}.dump() + "\n";
    test::write_bytes(data, lines);
    const json recipe = {{"model", {{"path", (oracle / "base").string()}, {"compute_dtype", "f32"}}},
                         {"adapter", adapter},
                         {"data", {{"train", data.string()}, {"format", "tokens"}}},
                         {"train", {{"steps", 5}}},
                         {"optimizer", {{"lr", 1e-2}}},
                         {"output", {{"dir", run.string()}}}};
    train(parse_recipe(recipe.dump(), "test"), rank.context(), Observer{});
    return run / "adapter";
  }

  fs::path merge(const fs::path& adapter) {
    const fs::path out = directory / "merged";
    MergeRequest request{.adapter = adapter.string(), .model = (oracle / "base").string(), .out = out.string()};
    request.dtype = "f32";
    merge_model(request, rank.context());
    return out;
  }
};

// Memory is planned for the rows that the adapter brings.
TEST_F(PeftRoundTrip, ARunGoesOnFromRowsOfAddedTokens) {
  PeftAdapter adapter = read_peft_directory(oracle / "adapter");
  adapter.options.trainable_token_indices = {{"", {61, 62}}};
  std::vector<std::pair<std::string, Tensor>> tensors{
      {kPeftPrefix + std::string("model.embed_tokens.token_adapter.trainable_tokens_delta"),
       Tensor::zeros(rank.context().pool, {2, 16}, DType::f32)}};
  for (const auto& [name, value] : adapter.tensors) tensors.emplace_back(kPeftPrefix + name, value);
  write_peft_directory(directory / "added", adapter.options, tensors);
  const PeftAdapter result = read_peft_directory(trained({{"path", (directory / "added").string()}}));
  EXPECT_EQ(result.find("model.embed_tokens.token_adapter.trainable_tokens_delta").shape(), (Shape{2, 16}));
}

std::vector<float> values(const Tensor& x) { return {x.data<const float>(), x.data<const float>() + x.numel()}; }

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return largest;
}

TEST_F(PeftRoundTrip, AnAdapterOfPeftComputesHereWhatItComputesThere) {
  const std::vector<float> base = values(results.at("base")), adapter = values(results.at("adapter"));
  EXPECT_GT(largest_difference(base, adapter), 0.1) << "the adapter changes something";
  EXPECT_LT(largest_difference(logits(oracle / "base", ""), base), 1e-5);
  EXPECT_LT(largest_difference(logits(oracle / "base", oracle / "adapter"), adapter), 1e-5);
  EXPECT_LT(largest_difference(logits(merge(oracle / "adapter"), ""), adapter), 1e-5);
}

// With ORACLE_PY, a Python that has what tests/oracles/requirements.txt lists.
TEST_F(PeftRoundTrip, PeftAndTransformersComputeWhatWeWrote) {
  const char* python = std::getenv("ORACLE_PY");
  if (python == nullptr) GTEST_SKIP() << "ORACLE_PY is not set";
  const fs::path adapter = trained({{"r", 4}});
  Tensor array = Tensor::empty(rank.context().pool, {2, static_cast<int64_t>(ids[0].size())}, DType::i64);
  std::copy(ids[0].begin(), ids[0].end(), array.data<int64_t>());
  std::copy(ids[1].begin(), ids[1].end(), array.data<int64_t>() + ids[0].size());
  test::write_npy(directory / "ids.npy", array);
  const fs::path merged = merge(adapter);
  const std::string command = std::string(python) + " " + kSourceDir + "/tests/oracles/peft_round_trip.py load " +
                              (oracle / "base").string() + " " + adapter.string() + " " + merged.string() + " " +
                              (directory / "ids.npy").string() + " " + (directory / "out.npy").string() + " >" +
                              (directory / "log").string() + " 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0) << test::read_bytes(directory / "log");
  const std::vector<float> theirs = values(read_npy(directory / "out.npy"));
  std::vector<float> ours = logits(oracle / "base", adapter);
  EXPECT_GT(largest_difference(ours, logits(oracle / "base", "")), 0.01) << "training changed something";
  const std::vector<float> whole = logits(merged, "");
  ours.insert(ours.end(), whole.begin(), whole.end());
  EXPECT_LT(largest_difference(ours, theirs), 1e-5);
}

}  // namespace
}  // namespace nibble
