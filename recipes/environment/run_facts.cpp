#include "nibble/recipes/environment/run_facts.h"

#include <ctime>
#include <set>

#include <nlohmann/json.hpp>

#include "nibble/core/base/cpu_features.h"
#include "nibble/core/base/version.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/parallel/experts/expert_parallel.h"
#include "nibble/parallel/pipeline/tied_embedding.h"
#include "nibble/recipes/environment/machine.h"

namespace nibble {

namespace {

using OrderedJson = nlohmann::ordered_json;

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

OrderedJson machine_facts(int threads) {
  const Machine machine = this_machine();
  return {{"cpu", machine.cpu},
          {"instruction_set", isa_name(isa())},
          {"cores", machine.usable_cores()},
          {"threads", threads},
          {"memory_bytes", machine.memory_budget().bytes},
          {"system", machine.kernel}};
}

OrderedJson model_facts(const Recipe& recipe, const Decoder& model, const WeightCounts& counts) {
  return {{"path", base_of(recipe)},
          {"architecture", model.config().architecture},
          {"parameters", static_cast<int64_t>(counts.all)},
          {"trained_parameters", static_cast<int64_t>(counts.trained)}};
}

OrderedJson data_facts(const Recipe& recipe, const TrainingData& data) {
  const bool pairs = is_pairwise(recipe.objective.type);
  const DatasetReport& report = data.train().dataset().report();
  OrderedJson files = OrderedJson::array();
  for (const DataFileFacts& file : report.files) {
    files.push_back({{"path", file.path}, {"records", file.records}, {"bytes", file.bytes}});
  }
  OrderedJson lengths = report.lengths;
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

}  // namespace

std::string base_of(const Recipe& recipe) { return recipe.pretrains() ? recipe.model.init : recipe.model.path; }

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
    if (linear.weight().storage().empty() || linear.weight().shared()) return;         // another rank or layer has it
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
  const OrderedJson facts = {{"nibble", version()},
                             {"started", now_text()},
                             {"machine", machine_facts(threads)},
                             {"ranks", mesh.world().size()},
                             {"model", model_facts(recipe, model, counts)},
                             {"data", data_facts(recipe, data)}};
  write_file_atomically(directory / "run.json",
                        facts.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
}

}  // namespace nibble
