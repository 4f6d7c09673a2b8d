#include "nibble/recipes/training/run_banner.h"

#include <algorithm>
#include <cmath>

#include "nibble/core/base/error.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/train/run/run.h"
#include "nibble/parallel/plan/memory.h"
#include "nibble/recipes/environment/machine.h"
#include "nibble/recipes/plan/plan_job.h"

namespace nibble {

namespace {

// "QLoRA on llama (nf4)"; the layers' own weights tell where the file was in 4 bits already.
std::string method_of(const Recipe& recipe, Decoder& model) {
  if (recipe.pretrains()) return "pretraining " + base_of(recipe);
  bool packed = false;
  model.visit_linears(
      [&](Linear& linear) { packed = packed || (!linear.weight().parameter() && !linear.weight().storage().empty()); });
  return (!recipe.adapter ? "full fine-tuning of " : packed ? "QLoRA on " : "LoRA on ") + base_of(recipe);
}

std::string planned_memory(const Recipe& recipe, const TrainingData& data, const RankContext& rank) {
  try {
    const PlanJob job = plan_job(recipe, data);
    PlanLayout layout = plan_layout(recipe);
    const auto budget = static_cast<int64_t>(rank.pool.budget());
    const std::vector<int64_t> stages = place_stages(job, layout, rank.threads, budget);
    MemoryPlan plan = plan_memory(job, layout, stages, rank.threads, budget);
    const int64_t room = budget > 0 ? budget : this_machine().usable_memory(rank.comm.size()) / 10 * 9;
    if (!recipe.train.gradient_checkpointing && !plan.fits(room)) {  // as activation_policy decides
      layout.recomputed = layers_to_recompute(job, layout, stages, rank.threads, room, budget);
      plan = plan_memory(job, layout, stages, rank.threads, budget);
    }
    return bytes_text(static_cast<double>(plan.needed_bytes()));
  } catch (const Error& error) {  // what can be trained need not have a plan
    return std::string("not known, ") + error.what();
  }
}

}  // namespace

std::vector<std::string> run_banner(const Recipe& recipe, Decoder& model, const WeightCounts& counts, const Mesh& mesh,
                                    const TrainingData& data, const RankContext& rank, const Work& work, double peak) {
  const auto number = [](double value) { return grouped_text(std::llround(value)); };
  const std::string share = formatted("%.3g%%", counts.all > 0 ? 100 * counts.trained / counts.all : 0);
  std::vector<std::string> lines;
  lines.push_back(method_of(recipe, model) + ": " + number(counts.all) + " parameters, " + number(counts.trained) +
                  " of them trained (" + share + ")");
  const int ranks = mesh.world().size();
  lines.push_back("computing in " + describe_arithmetic(recipe.model) + " on " +
                  (ranks > 1 ? count_text(ranks, "rank") + " of " : "") + count_text(rank.threads, "thread"));
  const DatasetReport& report = data.train().dataset().report();
  const std::string trained = " (" + grouped_text(report.trained_tokens) + " trained)";
  lines.push_back("data: " + counts_text(recipe, report) + (trains_tokens(recipe) ? trained : "") + "; " +
                  count_text(data.total_steps(), "step"));
  std::string planned =
      "planned memory: " + planned_memory(recipe, data, rank) + (ranks > 1 ? " on the rank that needs most" : "");
  if (ranks == 1 && peak > 0 && !shares_prompts(recipe, model.config())) {  // which are counted for each answer
    double operations = 0;
    const int64_t looked_at = std::min<int64_t>(data.total_steps(), 100);
    for (int64_t step = 1; step <= looked_at; ++step) {
      const StepInfo info = data.step_info(step);
      operations += work.per_token * static_cast<double>(info.tokens) +
                    work.per_label_token * static_cast<double>(info.label_tokens);
    }
    operations *= static_cast<double>(data.total_steps()) / static_cast<double>(std::max<int64_t>(1, looked_at));
    if (const double seconds = operations / peak; seconds >= 1) {
      planned += "; time: at least " + seconds_text(seconds) + ", at this CPU's peak";
    }
  }
  lines.push_back(planned);
  return lines;
}

}  // namespace nibble
