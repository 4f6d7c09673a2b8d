#include "nibble/recipes/evaluation/evaluate_model.h"

#include <algorithm>

#include "nibble/core/base/error.h"
#include "nibble/core/data/batches.h"
#include "nibble/core/models/generation/generate.h"
#include "nibble/core/models/nonfinite.h"

namespace nibble {

namespace {

// Whether the model ends where the rule finds the same as in the sample's answer.
bool answers_alike(Decoder& model, const AnswerComparison& comparison, std::span<const int32_t> prompt,
                   std::span<const int32_t> answer, const std::string& expected, const StepContext& step) {
  const Tokenizer& tokenizer = comparison.tokenizer;
  GenerateOptions greedy;
  greedy.max_new_tokens = comparison.max_new_tokens;
  greedy.sampling.vocabulary = tokenizer.vocab_size();
  greedy.stop_ids = model.config().eos_ids;
  if (tokenizer.is_special(answer.back())) greedy.stop_ids.push_back(answer.back());  // what ends a turn in training
  const std::vector<int32_t> output = generate(model, prompt, greedy, step);
  return comparison.rule.find(tokenizer.decode(output, true)) == expected;
}

}  // namespace

Evaluation evaluate_loss(Decoder& model, const DataOptions& options, const Encoder& encoder, DType compute_dtype,
                         RankContext& rank, const EvaluationWatch& watch,
                         const std::function<void(const Dataset&)>& on_data) {
  BatchOptions in_order;
  in_order.order = {options.max_length, options.pack, false, 0};
  const Batches batches(Dataset::load(options.train, options, encoder, DataSplit::eval), in_order);
  if (on_data) on_data(batches.dataset());
  const int64_t count = batches.steps_in_epoch(0);
  const auto batch_at = [&](int64_t i) {
    if (watch) watch(i, count);
    return batches.at(i + 1, 0, rank.pool);
  };
  try {
    return evaluate(model, count, batch_at, compute_dtype, rank);
  } catch (const NumericError&) {
    throw_nonfinite("evaluation: the loss", model);
  }
}

ExactMatch exact_match(Decoder& model, const DataOptions& options, const Encoder& encoder, int64_t limit,
                       const StepContext& step, const std::optional<AnswerComparison>& comparison,
                       const EvaluationWatch& watch) {
  const Dataset dataset = Dataset::load(options.train, options, encoder, DataSplit::eval);
  ExactMatch result;
  const int64_t count = limit > 0 ? std::min(limit, dataset.size()) : dataset.size();
  for (int64_t i = 0; i < count; ++i) {
    if (watch) watch(i, count);
    const Sample sample = dataset.sample(i);
    const auto is_prompt = [](int32_t label) { return label == kIgnoreLabel; };
    const auto end = std::find_if_not(sample.labels.rbegin(), sample.labels.rend(), is_prompt);
    const auto begin = std::find_if(end, sample.labels.rend(), is_prompt);
    if (begin == sample.labels.rend()) continue;
    const auto prompt = static_cast<size_t>(sample.labels.rend() - begin);
    const std::span<const int32_t> ids = std::span(sample.ids).first(static_cast<size_t>(sample.labels.rend() - end));
    const std::span<const int32_t> question = ids.first(prompt), answer = ids.subspan(prompt);
    ++result.asked;
    if (comparison) {
      const auto expected = comparison->rule.find(comparison->tokenizer.decode(answer, true));
      if (!expected) {
        throw InputError(dataset.place(i), "has an answer in which --answer finds nothing", "choose another --answer");
      }
      result.right += answers_alike(model, *comparison, question, answer, *expected, step);
      continue;
    }
    GenerateOptions greedy;
    greedy.max_new_tokens = std::ssize(answer);
    result.right += std::ranges::equal(generate(model, question, greedy, step), answer);
  }
  return result;
}

}  // namespace nibble
