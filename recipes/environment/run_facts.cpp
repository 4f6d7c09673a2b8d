#include "nibble/recipes/environment/run_facts.h"

#include <ctime>

#include <nlohmann/json.hpp>

#include "nibble/core/base/cpu_features.h"
#include "nibble/core/base/machine.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/parallel/pipeline/tied_embedding.h"

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
          {"memory_bytes", machine.memory_limit > 0 ? machine.memory_limit : machine.memory_total},
          {"system", machine.kernel}};
}

// Weights of the whole model, and those of them that are trained.
struct WeightCounts {
  double all = 0, trained = 0;
};

// Every rank counts what no other stage or shard counts.
WeightCounts count_weights(Decoder& model, const Mesh& mesh) {
  WeightCounts counts;
  model.visit([&](Parameter& parameter) {
    if (is_tied_copy(model, parameter.name) || (mesh.tensor().rank() > 0 && !parameter.shard)) return;
    const double elements = static_cast<double>(parameter.value.numel());
    if (parameter.trainable) counts.trained += elements;
    counts.all += elements;
  });
  model.visit_linears([&](Linear& linear) {
    const bool shared = linear.shard().slices_rows() || linear.shard().slices_columns();
    if (linear.weight().parameter() || (mesh.tensor().rank() > 0 && !shared)) return;  // packed ones are left
    counts.all += static_cast<double>(linear.in_features()) * static_cast<double>(linear.out_features());
  });
  for (Communicator* ranks : {&mesh.tensor(), &mesh.pipeline()}) {
    counts.all = ranks->all_reduce_sum("count weights", counts.all);
    counts.trained = ranks->all_reduce_sum("count weights", counts.trained);
  }
  return counts;
}

Json model_facts(const Recipe& recipe, Decoder& model, const WeightCounts& counts) {
  return {{"path", recipe.pretrains() ? recipe.model.init : recipe.model.path},
          {"architecture", model.config().architecture},
          {"parameters", static_cast<int64_t>(counts.all)},
          {"trained_parameters", static_cast<int64_t>(counts.trained)}};
}

Json data_facts(const TrainingData& data) {
  const DatasetReport& report = data.train().dataset().report();
  Json files = Json::array();
  for (const DataFileFacts& file : report.files) {
    files.push_back({{"path", file.path}, {"records", file.records}, {"bytes", file.bytes}});
  }
  Json lengths = report.lengths;
  while (!lengths.empty() && lengths.back() == 0) lengths.erase(lengths.size() - 1);
  return {{"files", files},
          {"records", report.records},
          {"samples", report.samples},
          {"tokens", report.tokens},
          {"trained_tokens", report.trained_tokens},
          {"truncated", report.truncated},
          {"dropped", report.dropped_long + report.dropped_untrained + report.bad_records},
          {"longest", report.longest},
          {"lengths_by_power_of_two", lengths}};
}

}  // namespace

void write_run_facts(const std::filesystem::path& directory, const Recipe& recipe, Decoder& model, const Mesh& mesh,
                     const TrainingData& data, int threads) {
  const WeightCounts counts = count_weights(model, mesh);
  if (mesh.world().rank() > 0) return;
  const Json facts = {{"nibble", version()},
                      {"started", now_text()},
                      {"machine", machine_facts(threads)},
                      {"ranks", mesh.world().size()},
                      {"model", model_facts(recipe, model, counts)},
                      {"data", data_facts(data)}};
  write_file_atomically(directory / "run.json", facts.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace nibble
