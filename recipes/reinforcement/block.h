#pragma once
// What a run computes of a block of answers before the steps that learn from them, and a plan without bytes.

#include <functional>
#include <vector>

#include "nibble/core/data/dataset.h"
#include "nibble/core/models/generation/answers.h"
#include "nibble/core/train/step_executor.h"
#include "nibble/parallel/plan/job.h"
#include "nibble/recipes/config/recipe.h"
#include "nibble/recipes/reinforcement/rollout.h"

namespace nibble {

/// The last answer of a text, [begin, end): its last tokens with labels that stand together.
std::pair<size_t, size_t> last_answer(const Sample& sample);

/// Throws InputError for a prompt of the data that the models which answer it cannot hold, or that is none.
void check_prompts(const Recipe& recipe, const DecoderConfig& config, const Dataset& dataset);

/// Whether all ranks draw every answer together, as ranks with parts of the weights do; others share the prompts out.
bool draws_together(const ParallelRecipe& parallel);

/// What the recipe says of drawing, without seed, tokens and texts that end an answer.
AnswerOptions drawing_options(const RolloutOptions& rollout);

/// sample_answers() by the executor's model. By all ranks that draw together.
void draw_answers(const Recipe& recipe, const Decoder& model, StepExecutor& executor,
                  std::span<const AnsweredPrompt> prompts, const AnswerOptions& options,
                  const std::function<void(Answer)>& use, const std::function<bool()>& go_on);

/// Adds what the objective has to know of the answers and they do not bring: log-probabilities by the policy that wrote
/// them (always: where some of them have theirs) and the reference (null: the policy's base with the adapter off), and
/// what the value model says. By all ranks.
void add_log_probs(const Recipe& recipe, StepExecutor& executor, StepExecutor* value, StepExecutor* reference,
                   bool always, std::vector<Rollout>& rollouts);

/// The same of answers that are as long as they may be, for a plan; empty where the objective has no answers.
PlannedBlock planned_block(const Recipe& recipe, const DecoderConfig& config);

}  // namespace nibble
