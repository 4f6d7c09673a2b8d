#include "nibble/recipes/training/training_data.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "nibble/core/base/philox.h"
#include "nibble/core/data/records/record_reader.h"
#include "nibble/core/formatting/joined.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/models/generation/generate.h"
#include "nibble/core/objectives/advantages.h"
#include "nibble/recipes/evaluation/text_lengths.h"
#include "nibble/recipes/models/tokenizers.h"
#include "nibble/recipes/preferences/labels.h"
#include "nibble/recipes/reinforcement/model_reward.h"

namespace nibble {

namespace {

constexpr uint32_t kMiniBatchPurpose = 0x6D696E69;  // "mini"

std::string percent(double share) { return formatted("%.1f%%", share * 100); }

void say(const Observer& observer, const Recipe& recipe, const DatasetReport& report, const std::string& what) {
  std::string line = what + ": " + counts_text(recipe, report);
  if (trains_tokens(recipe)) line += ", " + percent(report.trained_share()) + " trained";
  if (const std::string rest = left_out_text(report); !rest.empty()) line += ", " + rest;
  observer.message(line);
  for (const std::string& warning : report.warnings) observer.message("warning: " + warning);
}

// Where weights say that samples are taken more or less often than once.
void say_weighted(const Observer& observer, const Recipe& recipe, const Dataset& dataset) {
  const std::vector<double>& weights = dataset.weights();
  if (std::ranges::all_of(weights, [](double weight) { return weight == 1; })) return;
  double samples = 0, tokens = 0;
  dataset.for_each([&](int64_t, const SampleInfo& sample) {
    samples += weights.at(sample.source);
    tokens += weights.at(sample.source) * sample.length;
  });
  DatasetReport taken;
  taken.samples = std::llround(samples);
  taken.tokens = std::llround(tokens);
  observer.message("an epoch takes " + counts_text(recipe, taken) + ", by the weights in data.train");
}

// A beginner's small file in packed sequences is a handful of steps, of which warm-up may take all.
void warn_of_few_steps(const Recipe& recipe, int64_t steps, const Observer& observer) {
  constexpr int64_t kFew = 10;
  if (recipe.optimizer.schedule_for(steps).warmup_steps >= steps) {
    observer.message("warning: the run's " + count_text(steps, "step is", "steps are all") +
                     " warm-up, the first of them at a learning rate of 0; lower optimizer.warmup_ratio or "
                     "optimizer.warmup_steps, or train longer");
  } else if (!recipe.train.steps && steps < kFew) {
    const int64_t microbatches = recipe.train.accumulate;
    const bool pairs = is_pairwise(recipe.objective.type) && !recipe.data.pack;
    const std::string of =
        std::to_string(recipe.train.microbatch_size * microbatches) + (recipe.has_rollouts() ? " answers; "
                                                                       : pairs               ? " pairs; "
                                                                                             : " sequences; ");
    observer.message("warning: the run has only " + count_text(steps, "step") +
                     (microbatches > 1 ? " of " + of + "lower train.accumulate or" : ";") +
                     " raise train.epochs to learn more from these data");
  }
}

// Given answers to one prompt stand together, so many as the recipe says. Returns what looks wrong with their rewards.
std::string check_groups(const Dataset& dataset, const ObjectiveOptions& objective) {
  const RolloutOptions& rollout = objective.rollout;
  const auto prompt_of = [&](int64_t i) {
    Sample sample = dataset.sample(i);
    sample.ids.resize(answer_begin(sample));
    return sample.ids;
  };
  const int64_t size = rollout.completions;
  std::vector<int32_t> prompt;
  std::vector<double> rewards;
  int64_t level = 0;  // groups without a difference
  for (int64_t i = 0; i < dataset.size(); ++i) {
    std::vector<int32_t> own = prompt_of(i);
    rewards.push_back(static_cast<double>(dataset.sample(i).values.front()));
    if (i % size == size - 1) {
      level += has_no_advantages(spread_of(std::span(rewards).last(static_cast<size_t>(size))));
    }
    if (i % size != 0 && own != prompt) {
      throw InputError(
          dataset.place(i), "has another prompt than the one before",
          "give " + std::to_string(size) + " answers to each prompt (rollout.completions), one after another");
    }
    prompt = std::move(own);
  }
  if (dataset.size() % size != 0) {
    throw InputError(rollout.file, "ends within the answers to a prompt",
                     "give " + std::to_string(size) + " to each (rollout.completions)");
  }
  if (level == 0 || !has_rewards(objective.type) || objective.type == ObjectiveType::ppo) return {};
  return "the answers to " + std::to_string(level) + " of " + count_text(dataset.size() / size, "prompt") +
         " have rewards that do not differ: they teach nothing";
}

// Tokens that a sequence of the data may have, whatever data.max_length allows.
int64_t longest_sequence(const Recipe& recipe, const Dataset& dataset) {
  const DatasetReport& report = dataset.report();
  if (recipe.data.pack && !recipe.has_rollouts()) {
    return report.tokens * std::llround(std::ceil(std::ranges::max(dataset.weights())));
  }
  const bool draws = recipe.has_rollouts() && recipe.objective.rollout.file.empty();
  const bool surveys = recipe.objective.type == ObjectiveType::kto;  // a prompt with the answer to another one
  return (surveys ? 2 : 1) * report.longest + (draws ? recipe.objective.rollout.max_new_tokens : 0);
}

constexpr int64_t kLookedAt = 1000;  // steps

// Of a batch with the largest microbatch of the first steps.
int64_t largest_microbatch(const Batches& batches, int64_t steps, bool share) {
  int64_t rows = 0;
  for (int64_t step = 1; step <= std::min(steps, kLookedAt); ++step) {
    const int64_t microbatches = batches.info(step).microbatches;
    for (int64_t k = 0; k < microbatches; ++k) rows = std::max(rows, batch_rows(batches.samples(step, k), share));
  }
  return rows;
}

// Of a batch with the pair that has most.
int64_t longest_pair(const Dataset& dataset, bool share) {
  int64_t rows = 0, before = 0;
  dataset.for_each([&](int64_t i, const SampleInfo& sample) {
    if (dataset.continues_group(i) && before + sample.length > rows) {
      std::vector<Sample> pair{dataset.sample(i - 1), dataset.sample(i)};
      for (Sample& answer : pair) answer.group = 0;
      rows = std::max(rows, batch_rows(pair, share));
    }
    before = sample.length;
  });
  return rows;
}

// Prompts whose answers the run draws.
bool has_prompts_alone(const Recipe& recipe) {
  const ObjectiveOptions& objective = recipe.objective;
  return recipe.has_rollouts() && objective.rollout.file.empty() && !has_given_answers(objective);
}

using NamedConfigs = std::vector<std::pair<std::string, DecoderConfig>>;

// Models of their own that read what the policy reads.
NamedConfigs other_readers(const Recipe& recipe) {
  const ObjectiveOptions& objective = recipe.objective;
  NamedConfigs readers;
  const auto add = [&](const std::string& key, const std::string& path) {
    if (!path.empty()) readers.emplace_back(path + " (" + key + ")", read_decoder_config(path));
  };
  add("objective.teacher_model_name_or_path", objective.teacher_model_name_or_path);
  add("objective.reference", names_reference_directory(objective) ? objective.reference : "");
  add("objective.value_model", objective.value_model);
  const std::vector<RewardRecipe> rewards = recipe.all_rewards();
  for (size_t i = 0; i < rewards.size(); ++i) {
    const bool own = std::filesystem::exists(std::filesystem::path(rewards[i].path) / "config.json");
    add(reward_key(recipe, i), own ? rewards[i].path : "");  // an adapter is on the policy's base
  }
  return readers;
}

// longest: tokens of a prompt and the answer that is drawn to it.
void check_answer_lengths(int64_t longest, const DecoderConfig& model, const NamedConfigs& others,
                          const Observer& observer) {
  const std::string text = "the longest prompt with its answer may have " + std::to_string(longest) + " tokens, ";
  const int64_t most = text_limit(model);
  if (longest > most) {
    observer.message("warning: " + text + "the model was made for " + std::to_string(most) +
                     " (max_position_embeddings); lower rollout.max_new_tokens");
  }
  for (const auto& [name, config] : others) {
    if (std::min(longest, most) <= config.position_limit()) continue;
    throw InputError(name, text + "it holds " + std::to_string(config.position_limit()) + " positions",
                     "lower rollout.max_new_tokens or data.max_length");
  }
}

// rows: of a head that does not know all tokens.
void check_targets(const Dataset& dataset, int64_t rows) {
  for (int64_t i = 0; i < dataset.size(); ++i) {
    const std::vector<int32_t> labels = dataset.sample(i).labels;
    for (size_t t = 1; t < labels.size(); ++t) {  // nothing predicts the first
      if (labels[t] < rows) continue;
      throw InputError(dataset.place(i),
                       "trains token " + std::to_string(labels[t]) + ", but the model's head has rows for the first " +
                           std::to_string(rows) + " alone",
                       "give it as context, with the label -100");
    }
  }
}

}  // namespace

std::string left_out_text(const DatasetReport& report) {
  std::vector<std::string> parts;
  const auto add = [&](int64_t count, const char* reason) {
    if (count > 0) parts.push_back(grouped_text(count) + " " + reason);
  };
  add(report.truncated, "truncated");
  add(report.dropped_long, "dropped as too long");
  add(report.dropped_untrained, "dropped without a trained token");
  add(report.bad_records, report.bad_records == 1 ? "malformed record left out" : "malformed records left out");
  add(report.hidden_parts, "without parts that the text does not show");
  return joined(parts);
}

bool trains_tokens(const Recipe& recipe) { return !has_prompts_alone(recipe) && !has_scores(recipe.objective.type); }

std::string counts_text(const Recipe& recipe, const DatasetReport& report) {
  const bool pairs = is_pairwise(recipe.objective.type);
  return count_text(pairs ? report.samples / 2 : report.samples, pairs                       ? "pair"
                                                                 : has_prompts_alone(recipe) ? "prompt"
                                                                                             : "sample") +
         ", " + count_text(report.tokens, "token");
}

bool shares_prompts(const Recipe& recipe, const DecoderConfig& config) {
  const ObjectiveOptions& objective = recipe.objective;
  const bool apart =
      (recipe.adapter && recipe.adapter->options.lora_dropout > 0) || objective.score_at == ScoreAt::last_non_pad;
  const bool alike =
      is_pairwise(objective.type) || objective.type == ObjectiveType::grpo || objective.type == ObjectiveType::rloo;
  return alike && !apart && config.documents_may_share();
}

TrainingData::TrainingData(const Recipe& recipe, const DecoderConfig& model, const Encoder& encoder,
                           const Observer& observer)
    : tokenizer_size_(encoder.tokenizer_size), microbatch_size_(recipe.train.microbatch_size) {
  const uint64_t seed = static_cast<uint64_t>(recipe.train.seed);
  BatchOptions batching;
  batching.order = {recipe.data.max_length, recipe.data.pack, recipe.data.shuffle, seed};
  batching.microbatch_size = recipe.train.microbatch_size;
  batching.accumulate = recipe.train.accumulate;
  BatchOptions in_order = batching;
  in_order.order.shuffle = false;
  in_order.accumulate = 1;

  DataOptions data = recipe.data;
  if (recipe.has_rollouts()) lay_out_blocks(recipe, data, batching);
  const DataOptions& options = data;
  for (const std::string& line : missing_mark_warnings(options.chat_template, encoder)) observer.message(line);
  for (const std::string& note : split_notes(options.train)) observer.message(note);
  for (const std::string& note : split_notes(options.eval, DataSplit::eval)) observer.message(note);
  Dataset train = Dataset::load(options.train, options, encoder);
  say(observer, recipe, train.report(), "training data");
  const auto others = other_readers(recipe);
  const auto check_lengths = [&](const Dataset& dataset) {
    const auto tell = [&](const std::string& line) { observer.message(line); };
    check_text_lengths(dataset, model, options.max_length, "lower data.max_length", tell);
    for (const auto& [name, config] : others) {
      check_text_lengths(dataset, config, options.max_length, "lower data.max_length", tell, name);
    }
  };
  if (has_prompts_alone(recipe)) {
    const int64_t longest =
        std::min(train.report().longest, options.max_length) + recipe.objective.rollout.max_new_tokens;
    check_answer_lengths(longest, model, others, observer);
  } else {
    check_lengths(train);
  }
  if (!options.eval.empty()) {
    Dataset eval = Dataset::load(options.eval, options, encoder, DataSplit::eval);
    say(observer, recipe, eval.report(), "evaluation data");
    check_lengths(eval);
    eval_.emplace(std::move(eval), in_order);
  } else if (options.eval_fraction > 0) {
    const int64_t whole = train.size();
    auto [rest, held_out] = train.split(options.eval_fraction, seed, options.max_length);
    const bool cuts = rest.size() + held_out.size() > whole;
    eval_.emplace(std::move(held_out), in_order);
    train = std::move(rest);
    const bool pairs = is_pairwise(recipe.objective.type);
    observer.message(
        "evaluation data: " + count_text(eval_->dataset().size() / (pairs ? 2 : 1), pairs ? "pair" : "sample") +
        " split off" + (cuts ? "; longer samples were first cut to " + count_text(options.max_length, "token") : ""));
  }
  if (model.output_vocab_size > 0 && !has_scores(recipe.objective.type) && !has_prompts_alone(recipe)) {
    check_targets(train, model.output_vocab_size);
    if (eval_) check_targets(eval_->dataset(), model.output_vocab_size);
  }
  if (has_scores(recipe.objective.type)) {
    const ObjectiveOptions objective = with_score_head(recipe.objective, model);
    const bool labeled = objective.type == ObjectiveType::classification;
    if (labeled && eval_) check_labels(eval_->dataset(), objective, model.score_labels);
    const auto warnings = labeled ? check_labels(train, objective, model.score_labels) : std::vector<std::string>();
    for (const std::string& warning : warnings) observer.message("warning: " + warning);
  }
  if (options.format == DataFormat::rollouts) {
    const std::string warning = check_groups(train, recipe.objective);
    if (!warning.empty()) observer.message("warning: " + warning);
  }
  say_weighted(observer, recipe, train);
  train_.emplace(std::move(train), batching);
  const bool in_file_order = !options.shuffle && !options.pack;
  int64_t longest_mixed = std::min(recipe.data.max_length, model.position_limit());
  for (const auto& [name, config] : others) longest_mixed = std::min(longest_mixed, config.position_limit());
  train_samples_.emplace(recipe.objective, train_->dataset(), longest_mixed,
                         in_file_order ? batching.microbatch_size * batching.accumulate : 0);
  if (eval_) eval_samples_.emplace(recipe.objective, eval_->dataset(), longest_mixed, 0);
  total_steps_ =
      recipe.train.steps ? *recipe.train.steps : iterations_ * train_->steps_in(recipe.train.epochs.value_or(1));
  warn_of_few_steps(recipe, total_steps_, observer);
  const bool pairs = is_pairwise(recipe.objective.type);
  const bool surveys = recipe.objective.type == ObjectiveType::kto;  // other texts than a microbatch's
  if (pairs || !(recipe.data.pack || rollouts_ || surveys)) count_rows(recipe, pairs, shares_prompts(recipe, model));
}

void TrainingData::count_rows(const Recipe& recipe, bool pairs, bool share) {
  const auto count = [&](const Batches& batches, int64_t steps) {
    const int64_t rows = largest_microbatch(batches, steps, share);
    int64_t longest = 0;
    if (steps > kLookedAt) {
      longest = pairs ? longest_pair(batches.dataset(), share) : longest_sequence(recipe, batches.dataset());
    }
    sequence_rows_ = std::max({sequence_rows_, (rows + microbatch_size_ - 1) / microbatch_size_, longest});
    return rows;
  };
  const int64_t rows = count(*train_, total_steps_);
  if (pairs) pair_rows_ = rows;
  if (eval_) count(*eval_, eval_->steps_in_epoch(0));
}

// A step of Batches is a block of answers: of prompts as many as it has groups, of given answers all.
void TrainingData::lay_out_blocks(const Recipe& recipe, DataOptions& data, BatchOptions& batching) {
  const RolloutOptions& rollout = recipe.objective.rollout;
  rollouts_ = true;
  iterations_ = steps_per_block(recipe.objective);
  mini_batches_ = recipe.objective.type == ObjectiveType::ppo ? recipe.objective.num_mini_batches : 1;
  seed_ = static_cast<uint64_t>(recipe.train.seed);
  max_new_tokens_ = rollout.max_new_tokens;
  batching.microbatch_size = recipe.train.microbatch_size * recipe.train.accumulate;
  batching.accumulate = 1;
  if (rollout.file.empty()) {
    completions_ = rollout.completions;
    batching.microbatch_size /= completions_;
    if (has_given_answers(recipe.objective)) return;
    data.max_length -= max_new_tokens_;
    batching.order.max_length = data.max_length;
    return;
  }
  batching.order.shuffle = false;
  data.train = {{.path = rollout.file}};
  data.format = DataFormat::rollouts;
  data.needs_reward = has_rewards(recipe.objective.type);
  data.truncate = Truncate::error;
}

Recipe TrainingData::planned(Recipe recipe) const {
  if (sequence_rows_ > 0) {
    const int64_t length = is_pairwise(recipe.objective.type) ? (sequence_rows_ + 1) / 2 : sequence_rows_;
    recipe.data.max_length = std::clamp<int64_t>(length, 2, recipe.data.max_length);
    return recipe;
  }
  int64_t longest = longest_sequence(recipe, train_->dataset());
  if (eval_) longest = std::max(longest, longest_sequence(recipe, eval_->dataset()));
  recipe.data.max_length = std::clamp<int64_t>(longest, 2, recipe.data.max_length);
  return recipe;
}

StepInfo TrainingData::step_info(int64_t step) const {
  if (!rollouts_) return train_->info(step);
  StepInfo info = train_->info(block_of(step));
  if (completions_ > 0) {
    const int64_t answers = info.samples * completions_;
    info.tokens = info.tokens * completions_ + answers * max_new_tokens_;
    info.label_tokens = answers * max_new_tokens_;
    info.samples = info.sequences = answers;
  }
  if (mini_batches_ > 1) {
    const auto [begin, end] = mini_batch(step, info.samples);
    info.tokens = info.tokens * (end - begin) / info.samples;
    info.label_tokens = info.label_tokens * (end - begin) / info.samples;
    info.samples = info.sequences = end - begin;
  }
  info.microbatches = (info.samples + microbatch_size_ - 1) / microbatch_size_;
  return info;
}

std::pair<int64_t, int64_t> TrainingData::mini_batch(int64_t step, int64_t samples) const {
  const int64_t part = (step - 1) % mini_batches_;
  return {samples * part / mini_batches_, samples * (part + 1) / mini_batches_};
}

std::vector<size_t> TrainingData::rows_of(int64_t step) const {
  std::vector<size_t> rows(block_.size());
  std::iota(rows.begin(), rows.end(), 0);
  if (mini_batches_ == 1) return rows;
  const int64_t epoch = (step - 1) / mini_batches_;  // of the whole run
  PhiloxStream draw(seed_, kMiniBatchPurpose, static_cast<uint64_t>(epoch));
  for (size_t i = rows.size(); i > 1; --i) std::swap(rows[i - 1], rows[draw.next_below(i)]);
  const auto [begin, end] = mini_batch(step, std::ssize(rows));
  std::vector<size_t> own(rows.begin() + begin, rows.begin() + end);
  std::ranges::sort(own);
  return own;
}

void TrainingData::set_share(bool share) {
  share_ = share;
  train_samples_->set_share(share);
  if (eval_samples_) eval_samples_->set_share(share);
}

void TrainingData::set_block(std::vector<Sample> answers, Metrics metrics) {
  block_ = std::move(answers);
  block_metrics_ = std::move(metrics);
}

std::vector<Sample> TrainingData::samples(int64_t step, int64_t microbatch) const {
  if (!rollouts_) return train_->samples(step, microbatch);
  const std::vector<size_t> rows = rows_of(step);
  const auto begin = static_cast<ptrdiff_t>(microbatch * microbatch_size_);
  NIBBLE_CHECK(begin < std::ssize(rows), "the step has this microbatch");
  std::vector<Sample> found;
  for (auto i = begin; i < std::min(begin + microbatch_size_, std::ssize(rows)); ++i) {
    found.push_back(block_[rows[static_cast<size_t>(i)]]);
  }
  return found;
}

std::vector<Batch> TrainingData::microbatches(int64_t step, const std::vector<int64_t>& which, MemoryPool& pool) const {
  std::vector<Batch> batches;
  Batch none;
  none.ids = Tensor::empty(pool, {0}, DType::i32);
  for (const int64_t i : which) {
    batches.push_back(i == kIdle  ? none
                      : rollouts_ ? make_batch(samples(step, i), pool, share_)
                                  : train_samples_->make(samples(step, i), pool));
  }
  return batches;
}

std::optional<Evaluation> TrainingData::evaluate(StepExecutor& executor, const Objective& objective,
                                                 DType compute_dtype, const BeforeBatch& before) const {
  const auto batch_at = [&](int64_t i) { return eval_samples_->make(eval_->samples(i + 1, 0), executor.rank().pool); };
  return nibble::evaluate(executor, objective, eval_->steps_in_epoch(0), batch_at, compute_dtype, before);
}

std::string TrainingData::fingerprint() const {
  return train_->dataset().fingerprint() + (eval_ ? "-" + eval_->dataset().fingerprint() : "");
}

}  // namespace nibble
