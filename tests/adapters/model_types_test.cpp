// Model types against Transformers and PEFT: the cases of tests/oracles/model_types.py --small.

#include <algorithm>

#include "nibble/adapters/attach.h"
#include "nibble/adapters/peft/adapter_names.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/core/models/golden.h"

namespace nibble {
namespace {

using namespace nibble::test;

const std::filesystem::path kCommitted = std::string(kSourceDir) + "/tests/data/goldens/model_types";

std::vector<std::string> committed_types() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kCommitted)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

class ModelTypes : public ::testing::TestWithParam<std::string> {
 protected:
  ModelTypes() : folder_(kCommitted / GetParam()), decoder_(load_decoder(folder_ / "model", rank_.context())) {
    const Tensor ids = read_npy(folder_ / "ids.npy");
    const std::vector<int32_t> all = read_ids(folder_ / "ids.npy");
    for (int64_t row = 0; row < ids.dim(0); ++row) {
      const std::vector<int32_t> own(all.begin() + row * ids.dim(1), all.begin() + (row + 1) * ids.dim(1));
      samples_.push_back({.ids = own, .labels = own, .index = static_cast<size_t>(row)});
    }
  }
  void adapt() { load_adapter(decoder_, read_peft_directory((folder_ / "lora").string()), true, rank_.context()); }
  Batch batch() { return make_batch(samples_, rank_.context().pool); }
  void expect_logits(const std::string& file) {
    const std::vector<float> wanted = read_floats(folder_ / file);
    const double rms = norm(wanted) / std::sqrt(static_cast<double>(wanted.size()));
    EXPECT_LE(largest_difference(all_logits(decoder_, batch(), rank_.step()), wanted), 1e-4 * std::max(1.0, rms));
  }

  Rank rank_;
  std::filesystem::path folder_;
  Decoder decoder_;
  std::vector<Sample> samples_;
};

// Both rows are documents of one batch: what one leaves in a state must not reach the other.
TEST_P(ModelTypes, LogitsAreThoseOfTransformers) {
  expect_logits("logits.npy");
  adapt();
  expect_logits("lora_logits.npy");
}

TEST_P(ModelTypes, GradientsOfTheAdapterAreThoseOfPeft) {
  adapt();
  const Batch both = batch();
  decoder_.loss_sum_and_gradients(both, rank_.step(), static_cast<float>(1 / static_cast<double>(both.label_tokens)));
  std::map<std::string, std::vector<float>> result;
  for (const auto& [name, gradient] : gradients_of(decoder_)) result[peft_name(name, decoder_.config())] = gradient;
  expect_gradients(result, folder_ / "lora_grads.safetensors");
}

TEST_P(ModelTypes, CachedLogitsAreThoseOfTheWholeText) {
  const Sample& whole = samples_[0];
  const StepContext step = rank_.step();
  const std::vector<float> wanted = all_logits(decoder_, make_batch({&whole, 1}, step.pool()), step);
  KvCache cache = decoder_.make_cache(step);
  std::vector<float> result;
  size_t begin = 0;
  for (const size_t count : {size_t{5}, size_t{1}, size_t{3}, whole.ids.size() - 9}) {
    const Sample piece{
        .ids = {whole.ids.begin() + static_cast<long>(begin), whole.ids.begin() + static_cast<long>(begin + count)},
        .labels = {}};
    const std::vector<float> part = all_logits(decoder_, make_batch({&piece, 1}, step.pool()), step, &cache);
    result.insert(result.end(), part.begin(), part.end());
    begin += count;
  }
  EXPECT_LE(largest_difference(result, wanted), 1e-4 * std::max(1.0, norm(wanted) / std::sqrt(1.0 * wanted.size())));
}

INSTANTIATE_TEST_SUITE_P(Committed, ModelTypes, ::testing::ValuesIn(committed_types()), [](const auto& param) {
  std::string name = param.param;
  std::replace(name.begin(), name.end(), '+', '_');
  return name;
});

}  // namespace
}  // namespace nibble
