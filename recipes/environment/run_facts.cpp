#include "nibble/recipes/environment/run_facts.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <set>

#include <nlohmann/json.hpp>

#include "nibble/core/base/cpu_features.h"
#include "nibble/core/base/error.h"
#include "nibble/core/base/version.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/parallel/experts/expert_parallel.h"
#include "nibble/parallel/pipeline/tied_embedding.h"
#include "nibble/parallel/plan/memory.h"
#include "nibble/recipes/environment/machine.h"
#include "nibble/recipes/plan/plan_job.h"

namespace nibble {

namespace {

using Json = nlohmann::ordered_json;

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

Json machine_facts(int threads) {
  const Machine machine = this_machine();
  return {{"cpu", machine.cpu},
          {"instruction_set", isa_name(isa())},
          {"cores", machine.usable_cores()},
          {"threads", threads},
          {"memory_bytes", machine.memory_budget().bytes},
          {"system", machine.kernel}};
}

std::string base_of(const Recipe& recipe) { return recipe.pretrains() ? recipe.model.init : recipe.model.path; }

Json model_facts(const Recipe& recipe, const Decoder& model, const WeightCounts& counts) {
  return {{"path", base_of(recipe)},
          {"architecture", model.config().architecture},
          {"parameters", static_cast<int64_t>(counts.all)},
          {"trained_parameters", static_cast<int64_t>(counts.trained)}};
}

Json data_facts(const Recipe& recipe, const TrainingData& data) {
  const bool pairs = is_pairwise(recipe.objective.type);
  const DatasetReport& report = data.train().dataset().report();
  Json files = Json::array();
  for (const DataFileFacts& file : report.files) {
    files.push_back({{"path", file.path}, {"records", file.records}, {"bytes", file.bytes}});
  }
  Json lengths = report.lengths;
  while (!lengths.empty() && lengths.back() == 0) lengths.erase(lengths.size() - 1);
  return {{"files", files},
          {"records", report.records},
          {pairs ? "pairs" : "samples", pairs ? report.samples / 2 : report.samples},
          {"tokens", report.tokens},
          {"trained_tokens", report.trained_tokens},
          {"truncated", report.truncated},
          {"dropped", report.dropped_long + report.dropped_untrained + report.bad_records},
          {"longest", report.longest},
          {"total_steps", data.total_steps()},
          {"lengths_by_power_of_two", lengths}};
}

// "QLoRA on llama (nf4)"; the layers' own weights tell where the file was in 4 bits already.
std::string method_of(const Recipe& recipe, Decoder& model) {
  if (recipe.pretrains()) return "pretraining " + base_of(recipe);
  bool packed = false;
  model.visit_linears(
      [&](Linear& linear) { packed = packed || (!linear.weight().parameter() && !linear.weight().storage().empty()); });
  return (!recipe.adapter ? "full fine-tuning of " : packed ? "QLoRA on " : "LoRA on ") + base_of(recipe);
}

std::string planned_memory(const Recipe& recipe, const RankContext& rank) {
  try {
    const PlanJob job = plan_job(recipe);
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

// Every rank counts what no other stage or shard counts.
WeightCounts count_weights(Decoder& model, const Mesh& mesh) {
  WeightCounts counts;
  const std::set<const Parameter*> spread = spread_weights(model);
  model.visit([&](Parameter& parameter) {
    if (is_tied_copy(model, parameter.name) || (mesh.tensor().rank() > 0 && !parameter.shard)) return;
    if (mesh.experts().rank() > 0 && !spread.contains(&parameter)) return;
    const double elements = static_cast<double>(parameter.value.numel());
    if (parameter.trainable) counts.trained += elements;
    counts.all += elements;
  });
  model.visit_linears([&](Linear& linear) {
    const bool shared = linear.shard().slices_rows() || linear.shard().slices_columns();
    if (linear.weight().parameter() || (mesh.tensor().rank() > 0 && !shared)) return;  // packed ones are left
    if (linear.weight().storage().empty()) return;                                     // another rank has it
    if (mesh.experts().rank() > 0 && !is_spread(model, linear)) return;
    counts.all += static_cast<double>(linear.in_features()) * static_cast<double>(linear.out_features());
  });
  for (Communicator* ranks : {&mesh.tensor(), &mesh.experts(), &mesh.pipeline()}) {
    counts.all = ranks->all_reduce_sum("count weights", counts.all);
    counts.trained = ranks->all_reduce_sum("count weights", counts.trained);
  }
  return counts;
}

void write_run_facts(const std::filesystem::path& directory, const Recipe& recipe, const Decoder& model,
                     const WeightCounts& counts, const Mesh& mesh, const TrainingData& data, int threads) {
  const Json facts = {{"nibble", version()},
                      {"started", now_text()},
                      {"machine", machine_facts(threads)},
                      {"ranks", mesh.world().size()},
                      {"model", model_facts(recipe, model, counts)},
                      {"data", data_facts(recipe, data)}};
  write_file_atomically(directory / "run.json", facts.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

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
  std::string planned = "planned memory: " + planned_memory(data.planned(recipe), rank) +
                        (ranks > 1 ? " on the rank that needs most" : "");
  if (ranks == 1 && peak > 0) {
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
