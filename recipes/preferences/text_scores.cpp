#include "nibble/recipes/preferences/text_scores.h"

#include <algorithm>
#include <cmath>

#include "nibble/core/formatting/readable.h"
#include "nibble/core/models/nonfinite.h"
#include "nibble/core/objectives/answers.h"

namespace nibble {

std::vector<float> last_scores(Decoder& model, const Sample& text, const StepContext& step, int32_t pad_id) {
  const Batch batch = make_batch({&text, 1}, step.pool());
  std::vector<float> scores;
  TokenLoss reader;
  reader.of_logits = {scored_rows(batch, pad_id), true, [&](int64_t, Tensor& logits, float, const float*) {
                        if (!logits.device().has_bytes()) return 0.0;
                        const Tensor read = logits.to(step.pool().host());
                        scores.assign(read.data<const float>(), read.data<const float>() + read.numel());
                        return 0.0;
                      }};
  model.loss_sum(batch, step, reader);
  return scores;
}

std::vector<std::vector<std::vector<float>>> text_scores(Decoder& model, DataOptions options, const Encoder& encoder,
                                                         const StepContext& step, int32_t pad_id,
                                                         const std::function<void(const Dataset&)>& on_data) {
  options.max_length = int64_t{1} << 24;
  const Dataset dataset = Dataset::load(options.train, options, encoder);
  if (const int64_t dropped = dataset.report().dropped_untrained; dropped > 0) {
    throw InputError(dataset.report().files.front().path,
                     count_text(dropped, "record has", "records have") + " a text or an answer without a token",
                     "correct them");
  }
  if (on_data) on_data(dataset);
  std::vector<std::vector<std::vector<float>>> found;
  for (int64_t i = 0; i < dataset.size(); ++i) {
    if (!dataset.continues_group(i)) found.emplace_back();
    std::vector<float> scores = last_scores(model, dataset.sample(i), step, pad_id);
    if (!std::ranges::all_of(scores, [](float score) { return std::isfinite(score); })) {
      throw_nonfinite(dataset.place(i) + ": score", model);
    }
    found.back().push_back(std::move(scores));
  }
  return found;
}

}  // namespace nibble
