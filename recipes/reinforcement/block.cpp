#include "nibble/recipes/reinforcement/block.h"

#include <algorithm>

#include "nibble/core/comm/communicator.h"
#include "nibble/core/models/generation/generate.h"
#include "nibble/core/objectives/options.h"
#include "nibble/recipes/models/open_model.h"
#include "nibble/recipes/preferences/text_log_probs.h"
#include "nibble/recipes/preferences/text_scores.h"

namespace nibble {

std::pair<size_t, size_t> last_answer(const Sample& sample) {
  size_t end = sample.labels.size();
  while (end > 0 && sample.labels[end - 1] == kIgnoreLabel) --end;
  size_t begin = end;
  while (begin > 0 && sample.labels[begin - 1] != kIgnoreLabel) --begin;
  return {begin, end};
}

// Those of prompts alone are no longer than data.max_length allows.
void check_prompts(const Recipe& recipe, const DecoderConfig& config, const Dataset& dataset) {
  const ObjectiveOptions& objective = recipe.objective;
  const bool has_answers = has_given_answers(objective);
  int64_t most = text_limit(config);
  if (objective.seq_kd) most = std::min(most, text_limit(model_config(teacher_of(recipe))));
  dataset.for_each([&](int64_t i, const SampleInfo& prompt) {
    const int64_t length =
        has_answers ? static_cast<int64_t>(last_answer(dataset.sample(i)).first) : int64_t{prompt.length};
    if (length == 0) {
      throw InputError(dataset.place(i), "has no prompt that could be answered", "give prompts and answers");
    }
    if (length >= most) {
      throw InputError(
          dataset.place(i),
          "has a prompt of " + std::to_string(length) + " tokens, the model was made for " + std::to_string(most),
          "lower data.max_length and set data.truncate to drop");
    }
    if (has_answers && length + objective.rollout.max_new_tokens > recipe.data.max_length) {
      throw InputError(dataset.place(i),
                       "has a prompt of " + std::to_string(length) +
                           " tokens, which leaves less than rollout.max_new_tokens of data.max_length",
                       "raise data.max_length, or take the record out");
    }
  });
}

bool draws_together(const ParallelRecipe& parallel) { return parallel.pipeline * parallel.tensor * parallel.shard > 1; }

AnswerOptions drawing_options(const RolloutOptions& rollout) {
  AnswerOptions options;
  options.sampling = {.temperature = static_cast<float>(rollout.temperature),
                      .top_k = rollout.top_k,
                      .top_p = static_cast<float>(rollout.top_p),
                      .min_p = static_cast<float>(rollout.min_p)};
  options.max_new_tokens = rollout.max_new_tokens;
  return options;
}

void draw_answers(const Recipe& recipe, const Decoder& model, StepExecutor& executor,
                  std::span<const AnsweredPrompt> prompts, const AnswerOptions& options,
                  const std::function<void(Answer)>& use, const std::function<bool()>& go_on) {
  const StepContext step{.rank = executor.rank(), .compute_dtype = recipe.model.dtype()};
  const NextLogits next = [&](const Batch& batch, KvCache& cache) { return executor.next_logits(batch, step, cache); };
  sample_answers(model, next, prompts, options, step, use, go_on);
}

void add_log_probs(const Recipe& recipe, StepExecutor& executor, StepExecutor* value, StepExecutor* reference,
                   bool always, std::vector<Rollout>& rollouts) {
  const ObjectiveOptions& objective = recipe.objective;
  if (!has_rewards(objective.type)) return;
  LogProbPass pass;
  pass.compute_dtype = recipe.model.dtype();
  pass.batch_tokens = std::min(pass.batch_tokens, recipe.data.max_length);
  pass.temperature = objective.rollout.temperature;
  // before: how many values in front of those of the answer's tokens are wanted.
  const auto fill = [&](StepExecutor& by, std::vector<float> Rollout::*into, ptrdiff_t before = 0) {
    std::vector<size_t> missing, begins = {0};
    for (size_t i = 0; i < rollouts.size(); ++i) {
      const Rollout& rollout = rollouts[i];
      if (!(rollout.*into).empty()) continue;
      missing.push_back(i);
      begins.push_back(begins.back() + rollout.prompt.size() + rollout.answer.size());
    }
    if (missing.empty()) return;
    const auto text = [&](size_t d) { return text_of(rollouts[missing[d]]); };
    const std::vector<float> all = text_log_probs(by, begins, text, pass);
    for (size_t d = 0; d < missing.size(); ++d) {
      Rollout& rollout = rollouts[missing[d]];
      const auto end = all.begin() + static_cast<ptrdiff_t>(begins[d + 1]);
      (rollout.*into).assign(end - std::ssize(rollout.answer) - before, end);
    }
  };
  const bool compares = has_reference(objective), ppo = objective.type == ObjectiveType::ppo;
  const bool in_reward = ppo || (objective.type == ObjectiveType::rloo && compares);
  if (always || steps_per_block(objective) > 1 || in_reward) fill(executor, &Rollout::old);
  pass.adapters_enabled = reference != nullptr;
  if (compares) fill(reference ? *reference : executor, &Rollout::reference);
  if (!ppo) return;
  NIBBLE_CHECK(value != nullptr, "PPO has a value model");
  pass.adapters_enabled = pass.scores = true;
  fill(*value, &Rollout::values, 1);
}

namespace {
constexpr int64_t kMostPlanned = 256;  // answers; of more a plan takes a multiple
}

PlannedBlock planned_block(const Recipe& recipe, const DecoderConfig& config) {
  if (!recipe.has_rollouts()) return {};
  const RolloutOptions& rollout = recipe.objective.rollout;
  const int64_t limit = text_limit(config), longest = std::min(recipe.data.max_length, limit);
  const std::vector<int32_t> prompt(static_cast<size_t>(std::max<int64_t>(1, longest - rollout.max_new_tokens)), 0);
  const int64_t answer = std::min(rollout.max_new_tokens, limit - std::ssize(prompt));
  const int64_t answers = recipe.train.microbatch_size * recipe.train.accumulate;
  PlannedBlock block;
  block.steps = steps_per_block(recipe.objective);
  block.longest = std::ssize(prompt) + answer;
  if (rollout.file.empty()) {
    block.share = recipe.objective.lmbda;
    const auto draw = [recipe, prompt, answers](const Decoder& model, StepExecutor& executor, int64_t ranks,
                                                const std::function<bool()>& go_on) {
      const RolloutOptions& asked = recipe.objective.rollout;
      const int64_t groups = (answers / asked.completions + ranks - 1) / ranks;
      const int64_t each = std::min(asked.completions, kMostPlanned), some = std::min(groups, kMostPlanned / each);
      std::vector<AnsweredPrompt> prompts(static_cast<size_t>(some), {prompt, {}});
      for (AnsweredPrompt& one : prompts) {
        for (int64_t k = 0; k < each; ++k) one.sequences.push_back(k);
      }
      draw_answers(
          recipe, model, executor, prompts, drawing_options(asked), [](const Answer&) {}, go_on);
      return static_cast<double>(groups * asked.completions) / static_cast<double>(some * each);
    };
    block.draw = [draw, together = draws_together(recipe.parallel)](const Decoder& model, StepExecutor& executor,
                                                                    const std::function<bool()>& go_on) {
      return draw(model, executor, together ? 1 : executor.data_ranks().size(), go_on);
    };
    const int64_t ranks = recipe.parallel.replicate * recipe.parallel.shard;
    if (recipe.objective.seq_kd) {
      block.draw_by_teacher = [draw, ranks](Decoder& teacher, StepExecutor& executor) {
        draw(teacher, executor, std::max<int64_t>(1, ranks), [] { return true; });
      };
    }
  }
  block.judge = [recipe, prompt, answer, answers](StepExecutor& executor, StepExecutor* value, StepExecutor* reference,
                                                  std::span<Decoder> scorers) {
    Rollout one;
    one.prompt = prompt;
    one.answer.assign(static_cast<size_t>(answer), 0);
    const StepContext step{.rank = executor.rank(), .compute_dtype = recipe.model.dtype()};
    const int64_t some = std::min(answers, kMostPlanned);
    for (Decoder& scorer : scorers) {
      for (int64_t i = 0; i < some; ++i) last_scores(scorer, text_of(one), step, -1);
    }
    std::vector<Rollout> all(static_cast<size_t>(some), one);
    add_log_probs(recipe, executor, value, reference, false, all);
    return static_cast<double>(answers) / static_cast<double>(some);
  };
  return block;
}

}  // namespace nibble
