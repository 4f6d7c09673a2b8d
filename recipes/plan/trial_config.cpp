#include "nibble/recipes/plan/trial_config.h"

#include <algorithm>
#include <set>
#include <string>

#include "nibble/recipes/environment/machine.h"

namespace nibble {

namespace {

constexpr double kCold = 64 << 20;  // bytes of weights that no cache keeps from one step to the next
constexpr int64_t kMostLayers = 8;
constexpr double kLayerBytes = 256 << 20;  // of a layer with gradients and state
constexpr double kHeadBytes = 256 << 20;   // of the embedding, and of the head
constexpr double kTrialWeights = 4e6;      // of its layer; finding memory for more takes longer than the steps
constexpr int64_t kTrialWidth = 2048;      // products of so many columns are as fast as wider ones
constexpr int64_t kTrialVocabulary = 1024;

bool halves(const DecoderConfig& config, int64_t tensor) {
  const int64_t by = 2 * tensor;
  return config.heads % by == 0 && config.mlp_width % by == 0 && (config.kv_heads == 1 || config.kv_heads % by == 0);
}

void halve_layers(DecoderConfig& config) {
  config.heads /= 2;
  config.kv_heads = std::max<int64_t>(1, config.kv_heads / 2);
  config.qkv_groups =
      config.qkv_groups > 1 ? config.kv_heads == 1 ? 1 : std::max<int64_t>(1, config.qkv_groups / 2) : 1;
  config.mlp_width /= 2;
  config.alibi = Alibi::none;  // its slopes are for another number of heads
}

// The width of nothing but attention, MLP, embedding and head.
void halve_width(DecoderConfig& config) {
  config.width /= 2;
  config.embedding_width = config.width;
}

// How many layers, from the lowest, have one of every kind among them; of models whose kinds come late, kMostLayers.
int64_t layers_of_all_kinds(const PlannedModel& model) {
  std::set<std::string> kinds;
  int64_t count = 1;
  for (int64_t l = 0; l < std::min(model.config.layers, kMostLayers); ++l) {
    if (kinds.insert(model.group(l).kind).second) count = l + 1;
  }
  return count;
}

// Bytes of a layer in the trial. A trained value is held four times: itself, its gradient, two of the optimizer.
double bytes_of(const PlannedGroup& layer, bool everything) {
  return static_cast<double>(everything ? 16 * layer.weights : layer.frozen_bytes + 16 * layer.trained);
}

}  // namespace

DecoderConfig trial_config(const PlanJob& job, bool large, int64_t tensor, int64_t side_by_side, int64_t ranks) {
  DecoderConfig config = job.model.config;
  const PlannedGroup& layer = job.model.group(0);
  double share = 1 / static_cast<double>(tensor);  // of a layer's bytes
  double bytes = share * bytes_of(layer, job.everything);
  const double room = static_cast<double>(this_machine().usable_memory(side_by_side)) / 2;
  double values = static_cast<double>(layer.weights) / static_cast<double>(tensor);
  const auto halved = [&] {
    share /= 2;
    bytes /= 2;
    values /= 2;
  };
  for (; large && config.width / 2 >= kTrialWidth && config.width % 2 == 0; halved()) halve_width(config);
  const double most = std::min(kLayerBytes, room / 8);
  for (; (bytes > most || (large && values > kTrialWeights)) && halves(config, tensor); halved()) halve_layers(config);
  const double weights = job.everything ? bytes / 4 : bytes;  // what one pass reads
  const int64_t cold = large ? 0 : static_cast<int64_t>(kCold / std::max(weights, 1.0)) + 1;
  const int64_t most_layers = std::clamp<int64_t>(config.layers / ranks, 2, kMostLayers);
  config.layers =
      std::min(config.layers, std::max(layers_of_all_kinds(job.model), std::clamp<int64_t>(cold, 2, most_layers)));
  double all = 0;  // a layer of experts may be far larger than the lowest
  for (int64_t l = 0; l < config.layers; ++l) all += share * bytes_of(job.model.group(l), job.everything);
  if (all > room / 2) config.layers = 1;
  if (!config.layer.empty()) config.layer.resize(static_cast<size_t>(config.layers));
  const double row =
      (job.everything ? 8 : 2) * static_cast<double>(config.embedding_width) / static_cast<double>(tensor);
  const int64_t rows = static_cast<int64_t>(std::min(kHeadBytes, room / 4) / row);
  config.vocab_size = std::min(config.vocab_size, std::max<int64_t>(2048, rows));
  if (large) config.vocab_size = std::min(config.vocab_size, kTrialVocabulary);
  return config;
}

}  // namespace nibble
