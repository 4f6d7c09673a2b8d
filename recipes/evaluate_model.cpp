#include "nibble/recipes/evaluate_model.h"

#include <algorithm>

#include "nibble/core/data/batches.h"
#include "nibble/core/models/generate.h"

namespace nibble {

Evaluation evaluate_loss(Decoder& model, const DataOptions& options, const Encoder& encoder, DType compute_dtype,
                         RankContext& rank) {
  BatchOptions in_order;
  in_order.order = {options.max_length, options.pack, false, 0};
  const Batches batches(Dataset::load(options.train, options, encoder), in_order);
  return evaluate(
      model, batches.steps_in_epoch(0), [&](int64_t i) { return batches.at(i + 1, 0, rank.pool); }, compute_dtype,
      rank);
}

ExactMatch exact_match(Decoder& model, const DataOptions& options, const Encoder& encoder, int64_t limit,
                       const StepContext& step) {
  const Dataset dataset = Dataset::load(options.train, options, encoder);
  ExactMatch result;
  const int64_t count = limit > 0 ? std::min(limit, dataset.size()) : dataset.size();
  for (int64_t i = 0; i < count; ++i) {
    const Sample sample = dataset.sample(i);
    const auto first =
        std::find_if(sample.labels.begin(), sample.labels.end(), [](int32_t l) { return l != kIgnoreLabel; });
    const size_t prompt = static_cast<size_t>(first - sample.labels.begin());
    if (prompt == 0 || prompt == sample.ids.size()) continue;
    const std::span<const int32_t> ids(sample.ids);
    GenerateOptions greedy;
    greedy.max_new_tokens = static_cast<int64_t>(ids.size() - prompt);
    const std::vector<int32_t> said = generate(model, ids.first(prompt), greedy, step);
    ++result.asked;
    result.right += std::ranges::equal(said, ids.subspan(prompt));
  }
  return result;
}

}  // namespace nibble
