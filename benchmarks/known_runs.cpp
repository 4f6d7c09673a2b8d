#include "nibble/benchmarks/known_runs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/parallel/plan/work.h"
#include "nibble/recipes/plan/plan_job.h"

namespace nibble {

namespace {

using Json = nlohmann::json;

DecoderConfig shape_of(const Json& shape) {
  DecoderConfig config;
  config.width = config.embedding_width = shape.at("width");
  config.layers = shape.at("layers");
  config.heads = shape.at("heads");
  config.kv_heads = shape.value("kv_heads", config.heads);
  config.head_size = config.width / config.heads;
  config.mlp_width = shape.value("mlp_width", 4 * config.width);
  config.gated_mlp = shape.value("gated", false);
  config.vocab_size = shape.value("vocabulary", int64_t{51200});
  config.tied_head = shape.value("tied", true);
  config.layer.assign(static_cast<size_t>(config.layers), LayerConfig{.rotary = -1});
  return config;
}

PlanJob job_of(const Json& row, const DecoderConfig& config) {
  const std::string mode = row.value("mode", std::string("full"));
  Json recipe = {{"model", {{"path", "none"}, {"compute_dtype", "bf16"}}},
                 {"data", {{"train", "none"}, {"max_length", 2}}},
                 {"train", {{"steps", 1}, {"gradient_sum", "running"}}},
                 {"output", {{"dir", "none"}}}};
  if (mode != "full") recipe["adapter"] = {{"r", row.value("r", int64_t{8})}, {"target_modules", "all-linear"}};
  if (mode == "qlora") recipe["model"]["quantize"] = "nf4";
  PlanJob job = plan_job(parse_recipe(recipe.dump(), row.at("id")), config);
  job.document_length = row.value("sequence", int64_t{2048});
  job.tokens = row.value("microbatch", int64_t{1}) * job.document_length;
  return job;
}

KnownRun run_of(const Json& row, const Json& file) {
  KnownRun run;
  run.id = row.at("id");
  run.group = row.at("group");
  run.model = row.at("model");
  run.note = row.value("note", std::string());
  run.unit = row.at("unit");
  run.measured = row.at("measured");
  run.cluster = parse_cluster(file.at("clusters").at(row.at("cluster").get<std::string>()).dump(), run.id);
  run.job = job_of(row, shape_of(file.at("models").at(run.model)));
  PlanLayout& layout = run.layout;
  layout.mesh.pipeline = row.value("pipeline", int64_t{1});
  layout.mesh.shard = row.value("shard", int64_t{1});
  layout.mesh.tensor = row.value("tensor", int64_t{1});
  layout.mesh.replicate =
      row.at("ranks").get<int64_t>() / (layout.mesh.pipeline * layout.mesh.shard * layout.mesh.tensor);
  layout.wire_dtype = DType::bf16;
  layout.recompute = row.value("recompute", true) ? Recompute::block : Recompute::none;
  run.wire = {.weight_bytes = 2, .stream_bytes = 2, .interleave = row.value("interleave", 1.0)};
  // Sequences in a step, over all ranks, or passes of each.
  const int64_t data = layout.mesh.data();
  const int64_t passes = row.contains("batch")
                             ? row["batch"].get<int64_t>() / data / row.value("microbatch", int64_t{1})
                             : row.value("passes", int64_t{1});
  run.job.accumulate = std::max<int64_t>(1, passes) * data;
  for (const Json& id : row.value("from", Json::array())) run.from.push_back(id);
  run.plan = plan_memory(run.job, layout, stage_placements(run.job, layout).front(), 1, 0, false);
  return run;
}

double squared_error(const std::vector<const KnownRun*>& runs, const Cluster& cluster) {
  double sum = 0;
  for (const KnownRun* run : runs) sum += std::pow(std::log(predict(*run, cluster) / run->measured), 2);
  return sum;
}

// The efficiency at which the errors' logarithms add up to nothing; predictions rise with it, seconds fall.
Cluster with_best_efficiency(const std::vector<const KnownRun*>& runs, Cluster cluster) {
  const double sign = runs.front()->unit == "s" ? -1 : 1;
  double low = 0.01, high = 1.5;
  for (int i = 0; i < 24; ++i) {
    cluster.efficiency = std::sqrt(low * high);
    double sum = 0;
    for (const KnownRun* run : runs) sum += sign * std::log(predict(*run, cluster) / run->measured);
    (sum < 0 ? low : high) = cluster.efficiency;
  }
  return cluster;
}

}  // namespace

std::vector<KnownRun> read_known_runs(const std::string& file) {
  const Json json = read_json_file(file);
  std::vector<KnownRun> runs;
  for (const Json& row : json.at("rows")) {
    try {
      runs.push_back(run_of(row, json));
    } catch (const Json::exception& error) {
      throw InputError(file + ": row " + row.value("id", std::string("?")), error.what());
    }
  }
  return runs;
}

double predict(const KnownRun& run, const Cluster& cluster) {
  const PassSeconds passes = pass_seconds(run.job, run.layout, cluster);
  const StepTime time = step_time(run.job, run.layout, run.plan, passes, cluster, run.wire);
  const double ranks = static_cast<double>(run.layout.mesh.ranks());
  if (run.unit == "s") return time.seconds;
  if (run.unit == "tokens/s") return time.tokens_per_second / ranks;
  double each = 0;  // operations of a microbatch, those done again included
  const ModelWork& work = model_work(run.job, 1);
  for (int64_t l = 0; l < run.job.model.config.layers; ++l) {
    const LayerWork& of = work.layers[static_cast<size_t>(l)];
    each += of.forward + of.backward + (run.layout.recomputes(l) ? of.recompute : 0);
  }
  each = (each + work.head) / static_cast<double>(run.job.tokens);
  return each * time.tokens_per_second / ranks / 1e12;
}

Cluster fit(const std::vector<const KnownRun*>& runs) {
  NIBBLE_CHECK(!runs.empty(), "runs to fit on");
  Cluster best = with_best_efficiency(runs, runs.front()->cluster);
  if (runs.size() < 3) return best;
  double least = std::numeric_limits<double>::infinity();
  for (double width = 0; width <= 3000; width += 100) {
    Cluster cluster = runs.front()->cluster;
    cluster.half_width = width;
    cluster = with_best_efficiency(runs, cluster);
    const double error = squared_error(runs, cluster);
    if (error < least) {
      least = error;
      best = cluster;
    }
  }
  return best;
}

std::vector<Prediction> predict_held_out(const std::vector<KnownRun>& runs) {
  std::vector<Prediction> predictions;
  for (const KnownRun& run : runs) {
    if (run.from.empty()) continue;
    std::vector<const KnownRun*> known;
    for (const KnownRun& other : runs) {
      if (std::ranges::find(run.from, other.id) != run.from.end()) known.push_back(&other);
    }
    NIBBLE_CHECK(known.size() == run.from.size(), run.id + " names a run that is not there");
    Cluster constants = fit(known);
    // What is fitted belongs to the programs and processors; wires and sizes are the run's own.
    Cluster own = run.cluster;
    own.efficiency = constants.efficiency;
    own.half_width = constants.half_width;
    predictions.push_back({&run, own, predict(run, own)});
  }
  return predictions;
}

}  // namespace nibble
