#include "nibble/recipes/reinforcement/rollouts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "nibble/core/base/philox.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/objectives/advantages.h"
#include "nibble/core/objectives/policy_gradient.h"
#include "nibble/core/objectives/ppo.h"
#include "nibble/recipes/models/open_model.h"
#include "nibble/recipes/models/tokenizers.h"
#include "nibble/recipes/reinforcement/block.h"

namespace nibble {

namespace {

constexpr uint32_t kRolloutPurpose = 0x726F6C6C;  // "roll"
constexpr uint32_t kSourcePurpose = 0x6C6D6264;   // "lmbd"

// How format `rollouts` has Sample::values.
constexpr size_t kReward = 0, kTruncated = 1, kOld = 2;

void require_range(double reward) {
  if (std::isnan(reward) || std::abs(reward) <= std::numeric_limits<float>::max()) return;
  throw InputError("rewards", "one is " + formatted("%.3g", reward) + ", whose advantage f32 does not hold",
                   "give smaller numbers");
}

// By token of prompt and answer.
std::vector<float> behind_prompt(const Rollout& rollout, const std::vector<float>& of_answer) {
  if (of_answer.empty()) return {};
  std::vector<float> all(rollout.prompt.size());
  all.insert(all.end(), of_answer.begin(), of_answer.end());
  return all;
}

}  // namespace

Rollouts::Rollouts(const Recipe& recipe, const Decoder& model, TrainingData& data, const std::string& tokenizer,
                   const Observer& observer, Decoder* teacher, StepExecutor* reference)
    : recipe_(recipe),
      model_(model),
      data_(data),
      observer_(observer),
      teacher_(teacher),
      reference_(reference),
      tokenizer_(find_tokenizer(tokenizer)),
      stop_ids_(model.config().eos_ids),
      draws_(recipe.objective.rollout.file.empty()) {
  const RolloutOptions& rollout = recipe.objective.rollout;
  if (tokenizer_ && tokenizer_->eos_id()) stop_ids_.push_back(*tokenizer_->eos_id());
  if (!draws_) return;
  if (has_rewards(recipe.objective.type)) {
    records_.emplace(recipe.data);
    rewards_.emplace(recipe);
  }
  if (!rollout.stop.empty() && !tokenizer_) {
    throw UsageError("the model has no tokenizer that texts could be read with", "leave it out", "rollout.stop");
  }
  const Dataset& dataset = data_.train().dataset();
  check_prompts(recipe, model.config(), dataset);
  if (rewards_) dataset.for_each([&](int64_t, const SampleInfo& one) { rewards_->check(records_->at(one.record)); });
}

Rollouts::Source Rollouts::source_of(int64_t block) const {
  const ObjectiveOptions& objective = recipe_.objective;
  PhiloxStream draw(static_cast<uint64_t>(recipe_.train.seed), kSourcePurpose, static_cast<uint64_t>(block));
  if (objective.lmbda >= 1 || draw.next_uniform_double() < objective.lmbda) return Source::student;
  return objective.seq_kd ? Source::teacher : Source::data;
}

std::vector<Rollout> Rollouts::given(int64_t block) const {
  std::vector<Rollout> found;
  for (const Sample& sample : data_.block(block)) {
    const auto begin = static_cast<ptrdiff_t>(answer_begin(sample));
    Rollout& rollout = found.emplace_back();
    rollout.position = std::ssize(found) - 1;
    rollout.prompt.assign(sample.ids.begin(), sample.ids.begin() + begin);
    rollout.answer.assign(sample.ids.begin() + begin, sample.ids.end());
    rollout.reward = static_cast<double>(sample.values[kReward]);
    rollout.truncated = sample.values[kTruncated] < 0
                            ? std::ranges::find(stop_ids_, rollout.answer.back()) == stop_ids_.end()
                            : sample.values[kTruncated] > 0;
    rollout.old.assign(sample.values.begin() + kOld, sample.values.end());
    const std::vector<float> reference = data_.train_samples().reference(sample.row);
    if (!reference.empty()) rollout.reference.assign(reference.begin() + begin, reference.end());
  }
  return found;
}

bool Rollouts::is_masked(const Rollout& rollout) const {
  return recipe_.objective.mask_truncated_completions && rollout.truncated;
}

// Some token ends it, or, of the model's own, a text of rollout.stop.
bool Rollouts::has_end(const Rollout& rollout) const {
  const auto ends = [&](int32_t id) { return std::ranges::find(stop_ids_, id) != stop_ids_.end(); };
  return std::ranges::any_of(rollout.answer, ends) || (draws_ && !rollout.truncated);
}

void Rollouts::add_estimates() {
  std::vector<PpoAnswer> answers;
  double ends = 0;
  const auto wide = [](const std::vector<float>& of) { return std::vector<double>(of.begin(), of.end()); };
  for (const Rollout& rollout : rollouts_) {
    answers.push_back({.policy = wide(rollout.old),
                       .reference = wide(rollout.reference),
                       .values = wide(rollout.values),
                       .score = rollout.reward,
                       .ended = has_end(rollout)});
    for (const int32_t id : rollout.answer) ends += std::ranges::count(stop_ids_, id) > 0;
  }
  const std::vector<PpoEstimates> found = ppo_estimates(recipe_.objective, answers);
  for (size_t i = 0; i < rollouts_.size(); ++i) {
    rollouts_[i].token_rewards = found[i].rewards;
    rollouts_[i].returns = found[i].returns;
    rollouts_[i].advantages = found[i].advantages;
  }
  metrics_ = ppo_block_metrics(recipe_.objective, answers);
  metrics_.emplace_back("val/num_eos_tokens", ends);
}

void Rollouts::add_advantages() {
  metrics_.clear();
  std::vector<ScoredAnswer> answers;
  for (const Rollout& rollout : rollouts_) {
    ScoredAnswer& answer = answers.emplace_back();
    answer.reward = rollout.reward;
    answer.tokens = static_cast<double>(rollout.answer.size());
    answer.truncated = rollout.truncated;
    answer.masked = is_masked(rollout);
    if (rollout.old.empty() || rollout.reference.empty() || answer.masked) continue;
    for (size_t t = 0; t < rollout.old.size(); ++t) {
      answer.kl += static_cast<double>(rollout.old[t]) - static_cast<double>(rollout.reference[t]);
    }
  }
  if (recipe_.objective.type == ObjectiveType::ppo) {
    add_estimates();
  } else if (has_rewards(recipe_.objective.type)) {
    const std::vector<double> found = advantages(recipe_.objective, answers);
    for (size_t i = 0; i < rollouts_.size(); ++i) rollouts_[i].advantage = found[i];
    all_level_ = level_share(recipe_.objective, answers) == 1;
  }
  const Metrics more = answer_metrics(recipe_.objective, answers);
  metrics_.insert(metrics_.end(), more.begin(), more.end());
  for (size_t k = 0; rewards_ && k < rewards_->size(); ++k) {
    std::vector<double> own;
    for (const Rollout& rollout : rollouts_) own.push_back(rollout.rewards.at(k));
    const Spread spread = spread_of(own);
    const std::string name = "rewards/" + rewards_->names()[k];
    if (!std::isnan(spread.mean)) metrics_.emplace_back(name + "/mean", spread.mean);
    if (!std::isnan(spread.std)) metrics_.emplace_back(name + "/std", spread.std);
  }
}

// Said once. PPO compares answers with values.
void Rollouts::warn_of_equal_rewards() {
  constexpr int64_t kFew = 5;
  const ObjectiveType type = recipe_.objective.type;
  if (!has_rewards(type) || type == ObjectiveType::ppo || equal_blocks_ < 0) return;
  equal_blocks_ = all_level_ ? equal_blocks_ + 1 : -1;
  if (equal_blocks_ < kFew) return;
  equal_blocks_ = -1;
  observer_.message(
      "warning: in " + std::to_string(kFew) +
      " steps on new answers the rewards to no prompt have differed: nothing is learned from them (look at "
      "rollouts/ in output.dir; choose prompts that are answered rightly now and then, or a finer reward)");
}

std::vector<Sample> Rollouts::samples(bool first) const {
  std::vector<Sample> result;
  for (const Rollout& rollout : rollouts_) {
    Sample& sample = result.emplace_back(text_of(rollout));
    sample.index = result.size() - 1;
    sample.group = static_cast<int64_t>(sample.index) / recipe_.objective.rollout.completions;
    if (recipe_.objective.type == ObjectiveType::ppo) {
      sample.values = ppo_values({.values = {rollout.values.begin(), rollout.values.end()}},
                                 {.returns = rollout.returns, .advantages = rollout.advantages});
    } else {
      sample.values = {static_cast<float>(rollout.advantage), is_masked(rollout) ? 1.0f : 0.0f};
    }
    sample.reference = behind_prompt(rollout, rollout.reference);
    if (!first || old_given_) sample.old = behind_prompt(rollout, rollout.old);
  }
  return result;
}

// Each prompt of the block so often as it has answers, without them but for those of the data.
std::vector<Rollout> Rollouts::wanted(int64_t block) const {
  const int64_t completions = recipe_.objective.rollout.completions;
  std::vector<Rollout> all;
  std::map<int64_t, int64_t> seen;  // data.train may take a prompt twice in a block
  for (const Sample& sample : data_.block(block)) {
    const int64_t first = (seen[sample.row]++ * data_.train().dataset().size() + sample.row) * completions;
    for (int64_t k = 0; k < completions; ++k) {
      Rollout& rollout = all.emplace_back();
      rollout.position = std::ssize(all) - 1;
      rollout.sequence = first + k;
      rollout.record = data_.train().dataset().info(sample.row).record;
      rollout.prompt = sample.ids;
      if (!has_given_answers(recipe_.objective)) continue;
      const auto [begin, end] = last_answer(sample);
      rollout.answer.assign(sample.ids.begin() + static_cast<ptrdiff_t>(begin),
                            sample.ids.begin() + static_cast<ptrdiff_t>(end));
      rollout.prompt.resize(begin);
      rollout.truncated = std::ranges::find_first_of(rollout.answer, stop_ids_) == rollout.answer.end();
    }
  }
  return all;
}

// A teacher is unsharded on the ranks that have it, among them the last one.
void Rollouts::sample(int64_t block, bool by_teacher, StepExecutor& executor, const std::vector<Rollout>& all,
                      std::vector<Rollout>& done, const RolloutRun& run) const {
  const RolloutOptions& rollout = recipe_.objective.rollout;
  Communicator& ranks = executor.data_ranks();
  const bool together = !by_teacher && draws_together(recipe_.parallel);
  std::set<int64_t> is_done;
  for (const Rollout& one : done) is_done.insert(one.position);
  std::vector<AnsweredPrompt> prompts;
  std::vector<std::map<int64_t, int64_t>> positions;  // of each prompt's sequences
  for (size_t i = 0; i < all.size(); ++i) {
    const int64_t group = all[i].position / rollout.completions;
    if (is_done.contains(all[i].position) || (!together && group % ranks.size() != ranks.rank())) continue;
    const bool opens = positions.empty() || positions.back().begin()->second / rollout.completions != group;
    if (opens) {
      prompts.push_back({.ids = all[i].prompt});
      positions.emplace_back();
    }
    prompts.back().sequences.push_back(all[i].sequence);
    positions.back()[all[i].sequence] = all[i].position;
  }
  AnswerOptions options = drawing_options(rollout);
  options.sampling.seed =
      PhiloxStream(static_cast<uint64_t>(recipe_.train.seed), kRolloutPurpose, static_cast<uint64_t>(block)).next_u64();
  if (tokenizer_) options.sampling.vocabulary = tokenizer_->vocab_size();
  options.stop_ids = stop_ids_;
  if (!rollout.stop.empty()) {
    options.ends = [&](std::span<const int32_t> answer) {
      const std::string output = tokenizer_->decode(answer, true);
      return std::ranges::any_of(rollout.stop,
                                 [&](const std::string& stop) { return output.find(stop) != output.npos; });
    };
  }
  int64_t asked = 0;
  for (const AnsweredPrompt& prompt : prompts) asked += std::ssize(prompt.sequences);
  std::vector<Rollout> own;
  const auto report = [&] { observer_.work({first_step_of(block), "drawing", std::ssize(own), asked}); };
  const auto use = [&](Answer answer) {
    Rollout& result = own.emplace_back(all[static_cast<size_t>(positions[answer.prompt].at(answer.sequence))]);
    result.answer = std::move(answer.ids);
    result.sampled = std::move(answer.log_probs);
    result.truncated = answer.truncated;
    report();
  };
  if (asked > 0) report();
  const bool alone = executor.rank().comm.size() == 1 || !together;  // its passes are nobody else's
  const auto go_on = [&] { return alone ? !observer_.stop() : !run.stop(); };
  if (!by_teacher) {
    draw_answers(recipe_, model_, executor, prompts, options, use, go_on);
  } else if (teacher_) {
    LocalExecutor teacher(*teacher_, executor.rank());
    draw_answers(recipe_, *teacher_, teacher, prompts, options, use, go_on);
  }
  for (int r = 0; r < (together ? 0 : ranks.size()); ++r) {
    const std::string theirs =
        ranks.broadcast_text("rollouts", r == ranks.rank() ? write_rollouts(own, {}, {}) : "", r);
    for (Rollout& one : read_rollouts(theirs, {})) done.push_back(std::move(one));
  }
  if (together) done.insert(done.end(), own.begin(), own.end());
  if (by_teacher && recipe_.parallel.pipeline > 1) {
    Communicator& world = executor.rank().comm;
    const int last = world.size() - 1;
    done = read_rollouts(
        world.broadcast_text("rollouts", world.rank() == last ? write_rollouts(done, {}, {}) : "", last), {});
  }
  std::ranges::sort(done, {}, &Rollout::position);
}

// One rank asks the reward functions, so that what they say is the same for all.
bool Rollouts::judge(int64_t block, StepExecutor& executor) {
  Communicator& world = executor.rank().comm;
  std::string output, wrong;
  int exit_code = 0;
  bool stopped = false;
  if (world.rank() == 0) {
    std::vector<JudgedAnswer> answers;
    for (const Rollout& rollout : rollouts_) {
      answers.push_back({.prompt = text_of(tokenizer_.get(), rollout.prompt),
                         .answer = answer_text(tokenizer_.get(), rollout.answer),
                         .prompt_ids = rollout.prompt,
                         .ids = rollout.answer,
                         .record = &records_->at(rollout.record)});
    }
    int64_t told = -1;
    const auto stop = [&](size_t scored, size_t of) {
      const auto done = static_cast<int64_t>(scored);
      if (done > told) observer_.work({first_step_of(block), "judging", done, static_cast<int64_t>(of)});
      told = done;
      return observer_.stop();
    };
    try {
      const std::vector<std::vector<double>> scores = rewards_->score(answers, stop);
      stopped = scores.empty();
      if (const std::string failure = rewards_->failure(); !failure.empty() && !warned_of_failure_) {
        observer_.message("warning: " + failure +
                          "; its rewards are null (null_on_failure), also where it fails again: this is reported once");
        warned_of_failure_ = true;
      }
      for (size_t i = 0; !stopped && i < rollouts_.size(); ++i) {
        Rollout& rollout = rollouts_[i];
        rollout.rewards.clear();
        double sum = 0;
        bool any = false;
        for (size_t k = 0; k < scores.size(); ++k) {
          rollout.rewards.push_back(scores[k][i]);
          if (std::isnan(scores[k][i])) continue;
          any = true;
          sum += rewards_->weight(k) * scores[k][i];
        }
        if (any) rollout.reward = sum;
        for (const double reward : rollout.rewards) require_range(reward);
        require_range(rollout.reward);
      }
      output = write_rollouts(rollouts_, rewards_->names(), {});
    } catch (const Error& error) {
      wrong = error.what();
      exit_code = error.exit_code();
      for (Rollout& rollout : rollouts_) rollout.rewards.clear();
    }
  }
  if (world.size() > 1) {
    wrong = world.broadcast_text("rewards", wrong, 0);
    output = world.broadcast_text("rewards", output, 0);
  }
  if (!wrong.empty()) throw RewardError(wrong, static_cast<int>(world.all_reduce_sum("rewards", exit_code)));
  if (world.size() > 1 ? world.all_reduce_sum("stopped", stopped ? 1 : 0) > 0 : stopped) return false;
  if (world.size() > 1) rollouts_ = read_rollouts(output, rewards_->names());
  return true;
}

void Rollouts::restore(const std::string& kept) {
  if (kept.empty()) return;
  const size_t end = kept.find('\n');
  whole_ = kept.starts_with("whole ");
  block_ = std::stoll(kept.substr(kept.find(' ')));
  rollouts_ = read_rollouts(kept.substr(end + 1), whole_ && rewards_ ? rewards_->names() : std::vector<std::string>());
  if (!whole_) return;
  old_given_ =
      !draws_ && std::ranges::any_of(given(block_), [](const Rollout& rollout) { return !rollout.old.empty(); });
  add_advantages();
}

bool Rollouts::make(int64_t block, StepExecutor& executor, const RolloutRun& run) {
  const std::vector<std::string> names = rewards_ ? rewards_->names() : std::vector<std::string>();
  const auto keep = [&](const char* what, const std::vector<std::string>& of) {
    run.keep(what + std::to_string(block) + "\n" + write_rollouts(rollouts_, of, {}));
  };
  std::vector<Rollout> done;
  if (block == block_) done = std::move(rollouts_);  // in part
  rollouts_.clear();
  if (draws_) {
    std::vector<Rollout> all = wanted(block);
    const Source source = source_of(block);
    if (source == Source::data) {
      done = std::move(all);
    } else {
      sample(block, source == Source::teacher, executor, all, done, run);
    }
    rollouts_ = std::move(done);
    block_ = block;
    const auto keep_part = [&] {
      keep("part ", {});
      return false;
    };
    if (run.stop()) return keep_part();
    try {
      if (rewards_ && !judge(block, executor)) return keep_part();
    } catch (const RewardError&) {
      keep_part();
      throw;
    }
  } else {
    rollouts_ = given(block);
  }
  old_given_ = std::ranges::any_of(rollouts_, [](const Rollout& rollout) { return !rollout.old.empty(); });
  add_log_probs(recipe_, executor, executor.companion(), reference_, old_given_, rollouts_);
  add_advantages();
  warn_of_equal_rewards();
  if (recipe_.objective.lmbda < 1) metrics_.emplace_back("on_policy", source_of(block) == Source::student ? 1 : 0);
  block_ = block;
  whole_ = true;
  if (steps_per_block(recipe_.objective) > 1) {
    keep("whole ", names);
  } else {
    run.keep("");
  }
  if (run.directory.empty() || executor.rank().comm.rank() != 0) return true;
  std::vector<std::pair<std::string, std::string>> texts;
  for (const Rollout& rollout : rollouts_)
    texts.emplace_back(text_of(tokenizer_.get(), rollout.prompt), answer_text(tokenizer_.get(), rollout.answer));
  const int64_t step = first_step_of(block);
  try {
    std::error_code failure;  // is that of the file
    create_directories(run.directory, failure);
    write_file_atomically(run.directory / ("step-" + std::to_string(step) + ".jsonl"),
                          write_rollouts(rollouts_, names, texts));
  } catch (const IoError& error) {
    observer_.message("warning: answers are not written, training goes on without that: " + std::string(error.what()));
  }
  return true;
}

int64_t Rollouts::first_step_of(int64_t block) const { return (block - 1) * steps_per_block(recipe_.objective) + 1; }

bool Rollouts::prepare(int64_t step, StepExecutor& executor, const RolloutRun& run) {
  const int64_t block = data_.block_of(step);
  const bool there = block == block_ && whole_;
  if (!there) {
    whole_ = false;
    if (!make(block, executor, run)) return false;
  }
  const bool first = (step - 1) % steps_per_block(recipe_.objective) == 0;
  data_.set_block(samples(first), metrics_);
  return true;
}

}  // namespace nibble
