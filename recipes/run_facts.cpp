#include "nibble/recipes/run_facts.h"

#include <ctime>

#include <nlohmann/json.hpp>

#include "nibble/core/base/cpu_features.h"
#include "nibble/core/base/machine.h"
#include "nibble/core/io/atomic_file.h"

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

Json model_facts(const Recipe& recipe, Decoder& model) {
  int64_t trainable = 0, whole = 0;
  model.visit([&](Parameter& parameter) {
    if (parameter.trainable) trainable += parameter.value.numel();
    whole += parameter.value.numel();
  });
  model.visit_linears([&](Linear& linear) {
    if (!linear.weight().parameter()) whole += linear.in_features() * linear.out_features();  // packed ones
  });
  return {{"path", recipe.pretrains() ? recipe.model.init : recipe.model.path},
          {"architecture", model.config().architecture},
          {"parameters", whole},
          {"trained_parameters", trainable}};
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

void write_run_facts(const std::filesystem::path& directory, const Recipe& recipe, Decoder& model,
                     const TrainingData& data, int threads) {
  const Json facts = {{"nibble", version()},
                      {"started", now_text()},
                      {"machine", machine_facts(threads)},
                      {"model", model_facts(recipe, model)},
                      {"data", data_facts(data)}};
  write_file_atomically(directory / "run.json", facts.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace nibble
