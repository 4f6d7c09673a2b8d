#include "nibble/recipes/preferences/answer_log_probs.h"

#include <cmath>

#include "nibble/core/base/error.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/models/nonfinite.h"

namespace nibble {

std::vector<std::vector<AnswerLogProb>> answer_log_probs(Decoder& model, DataOptions options, const Encoder& encoder,
                                                         const StepContext& step, DataSplit split,
                                                         const EvaluationWatch& watch,
                                                         const std::function<void(const Dataset&)>& on_data) {
  options.max_length = int64_t{1} << 24;
  const Dataset dataset = Dataset::load(options.train, options, encoder, split);
  if (const int64_t dropped = dataset.report().dropped_untrained; dropped > 0) {
    throw InputError(dataset.report().files.front().path,
                     count_text(dropped, "record has", "records have") + " an answer without a token", "correct them");
  }
  if (on_data) on_data(dataset);
  std::vector<std::vector<AnswerLogProb>> found;
  for (int64_t i = 0; i < dataset.size(); ++i) {
    if (watch) watch(i, dataset.size());
    if (!dataset.continues_group(i)) found.emplace_back();
    const Sample sample = dataset.sample(i);
    AnswerLogProb answer;
    model.loss_sum(make_batch({&sample, 1}, step.pool()), step, [&](const Tensor& log_probs, Tensor&) {
      for (size_t t = 1; t < sample.labels.size(); ++t) {
        if (sample.labels[t] == kIgnoreLabel) continue;
        answer.log_prob += static_cast<double>(log_probs.data<const float>()[t - 1]);
        ++answer.tokens;
      }
      return 0.0;
    });
    if (!std::isfinite(answer.log_prob)) throw_nonfinite(dataset.place(i) + ": log-probability of an answer", model);
    found.back().push_back(answer);
  }
  return found;
}

}  // namespace nibble
