#include "nibble/recipes/evaluation/samples.h"

#include <algorithm>
#include <chrono>

#include "nibble/core/train/telemetry/trace.h"
#include "nibble/recipes/models/tokenizers.h"

namespace nibble {

namespace {

constexpr size_t kLongestAnswer = 96, kTextPrompt = 16;
constexpr const char* kEllipsis = "\u2026";

}  // namespace

Samples::Samples(const TrainingData& data, const std::string& tokenizer, const std::string& chat_template,
                 int64_t count) {
  if (count == 0) return;
  tokenizer_ = find_tokenizer(tokenizer);
  if (tokenizer_) turn_ends_ = answer_ends(*tokenizer_, chat_template);
  const Dataset& dataset = data.has_eval() ? data.eval().dataset() : data.train().dataset();
  for (int64_t i = 0; i < dataset.size() && static_cast<int64_t>(prompts_.size()) < count; ++i) {
    const Sample sample = dataset.sample(i);
    const std::span<const int32_t> labels(sample.labels);
    const auto first = std::ranges::find_if(labels.subspan(1), [](int32_t label) { return label != kIgnoreLabel; });
    const auto last = std::ranges::find(first, labels.end(), kIgnoreLabel);
    const auto answered = static_cast<size_t>(last - labels.begin());
    auto prompt = static_cast<size_t>(first - labels.begin());
    if (prompt <= 1) prompt = std::min(kTextPrompt, answered / 2);  // all of it is trained
    const size_t end = std::min(answered, prompt + kLongestAnswer);
    if (prompt == 0 || prompt >= end) continue;
    const auto at = [&](size_t place) { return sample.ids.begin() + static_cast<std::ptrdiff_t>(place); };
    cut_.push_back(end < answered);
    expected_.emplace_back(at(prompt), at(end));
    prompts_.push_back({.ids = {at(0), at(prompt)},
                        .max_new_tokens = static_cast<int64_t>(std::max(end - prompt, kTextPrompt)),
                        .sequence = static_cast<int64_t>(prompts_.size())});
  }
}

Samples::~Samples() = default;

bool Samples::write(Run& run, Decoder& model, StepExecutor& executor, DType compute_dtype) const {
  const TraceSpan span(run.trace(), Phase::evaluation, "samples");
  const StepContext step{.rank = executor.rank(), .compute_dtype = compute_dtype};
  GenerateOptions greedy;
  if (tokenizer_) greedy.sampling.vocabulary = tokenizer_->vocab_size();
  greedy.stop_ids = model.config().eos_ids;
  greedy.stop_ids.insert(greedy.stop_ids.end(), turn_ends_.begin(), turn_ends_.end());
  const auto next = [&](const Batch& batch, KvCache& cache) { return executor.next_logits(batch, step, cache); };
  bool stop = !prompts_.empty() && run.stop_requested();
  if (stop) return false;
  const auto go_on = [&](size_t, int32_t) { return !(stop = stop || run.stop_requested()); };
  using Clock = std::chrono::steady_clock;
  const Clock::time_point began = Clock::now();
  const std::vector<std::vector<int32_t>> output = generate(model, next, prompts_, greedy, step, go_on);
  if (stop) return false;
  const std::chrono::duration<double> each =
      (Clock::now() - began) / std::max(1.0, static_cast<double>(prompts_.size()));
  for (size_t i = 0; i < prompts_.size(); ++i) {
    const bool ended = static_cast<int64_t>(output[i].size()) < prompts_[i].max_new_tokens ||
                       std::ranges::find(greedy.stop_ids, output[i].back()) != greedy.stop_ids.end();
    run.log(SampleReport{run.step(), text_of(tokenizer_.get(), prompts_[i].ids),
                         text_of(tokenizer_.get(), expected_[i]) + (cut_[i] ? kEllipsis : ""),
                         text_of(tokenizer_.get(), output[i]) + (ended ? "" : kEllipsis)},
            each.count());
  }
  return true;
}

}  // namespace nibble
