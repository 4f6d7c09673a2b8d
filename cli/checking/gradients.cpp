// nibble gradients: loss and the gradient of every trainable tensor, for comparison with other software.

#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "nibble/adapters/peft/adapter_names.h"
#include "nibble/cli/command_line/model_flags.h"
#include "nibble/cli/commands.h"
#include "nibble/cli/printing/say.h"
#include "nibble/core/base/error.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/io/files/output_guard.h"
#include "nibble/core/io/safetensors/safetensors.h"
#include "nibble/core/models/nonfinite.h"
#include "nibble/recipes/train.h"

namespace nibble::cli {

namespace {

struct GradientsFlags {
  ModelFlags model;
  std::string ids, labels, out, recipe;
  std::vector<std::string> overrides;
  std::function<std::string()> given_beside_recipe;
};

// In the header of every file written here, so that no weights are taken for one.
const std::map<std::string, std::string> kMetadata = {{"format", "pt"}, {"nibble", "gradients"}};

bool is_gradients(const std::filesystem::path& file) { return SafetensorsFile(file.string()).metadata() == kMetadata; }

void guard(const GradientsFlags& flags, const std::vector<std::filesystem::path>& inputs) {
  guard_output(flags.out, inputs);
  require_own_file(flags.out, is_gradients, "nibble gradients");
}

void write_gradients(const std::string& out, double loss,
                     const std::vector<std::pair<std::string, Tensor>>& gradients) {
  std::string bad = std::isfinite(loss) ? "" : "the loss is not finite";
  for (const auto& [name, gradient] : gradients) {
    if (bad.empty()) bad = nonfinite_text("gradient of " + name, gradient);
  }
  if (!bad.empty()) throw NumericError("gradients", bad, "check the model's weights");
  write_safetensors(out, gradients, kMetadata);
}

std::vector<Sample> read_samples(const GradientsFlags& flags) {
  const auto ids = read_id_rows(flags.ids, "--ids"), labels = read_id_rows(flags.labels, "--labels");
  if (ids.size() != labels.size()) throw InputError(flags.labels, "has another number of rows than " + flags.ids);
  std::vector<Sample> samples;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i].size() != labels[i].size()) throw InputError(flags.labels, "has another row length than " + flags.ids);
    samples.push_back({.ids = ids[i], .labels = labels[i], .index = i});
  }
  return samples;
}

void run_recipe(const GradientsFlags& flags) {
  if (const std::string other = flags.given_beside_recipe(); !other.empty()) {
    throw UsageError(other + " with --recipe", "leave one out: the recipe names the model, the data and the rest");
  }
  const Recipe recipe = read_recipe(flags.recipe, flags.overrides);
  std::vector<std::filesystem::path> inputs = recipe.inputs();
  inputs.emplace_back(flags.recipe);
  guard(flags, inputs);
  if (recipe.pretrains()) throw UsageError("a recipe that starts from random weights has no gradients here");
  Observer observer;
  observer.on_message = [](const std::string& line) { say(stderr, line); };
  LocalRank rank(static_cast<int>(recipe.train.threads), static_cast<uint64_t>(recipe.train.seed));
  const FirstStep found = first_step(recipe, rank.context(), observer, std::filesystem::temp_directory_path());
  write_gradients(flags.out, found.sums.loss, found.gradients);
  nlohmann::ordered_json metrics = nlohmann::ordered_json::object();
  for (const auto& [name, value] : found.sums.metrics) metrics[name] = value;
  print_json({{"loss", found.sums.loss}, {"label_tokens", found.sums.label_tokens}, {"metrics", metrics}});
}

void run(const GradientsFlags& flags) {
  if (!flags.recipe.empty()) return run_recipe(flags);
  if (!flags.overrides.empty()) throw UsageError(flags.overrides.front() + " changes a recipe", "give a --recipe");
  for (const auto& [flag, value] :
       {std::pair{"--model", flags.model.base.path}, {"--ids", flags.ids}, {"--labels", flags.labels}}) {
    if (value.empty()) throw UsageError(std::string(flag) + " is required", "or give a --recipe");
  }
  guard(flags, {flags.model.base.path, flags.model.adapter, flags.ids, flags.labels});
  const std::vector<Sample> samples = read_samples(flags);
  LocalRank rank(flags.model.threads);
  const Train train = flags.model.adapter.empty() ? Train::everything : Train::adapter;
  Decoder decoder = open_model(flags.model, rank.context(), train);
  const Batch batch = make_batch(samples, rank.context().pool);
  if (batch.label_tokens == 0)
    throw InputError(flags.labels, "has no label token", "labels other than -100 are needed");
  StepContext step{.rank = rank.context(), .compute_dtype = flags.model.base.dtype()};
  std::optional<RouterBalance> balance = decoder.config().router_balance();
  if (balance) {
    step.balance = &*balance;
    DecoderPass(decoder, batch, step, false).forward({});
    balance->counting = false;
  }
  const double tokens = static_cast<double>(batch.label_tokens);
  const double loss = decoder.loss_sum_and_gradients(batch, step, static_cast<float>(1.0 / tokens)) / tokens +
                      (balance ? balance->loss() : 0);

  std::vector<std::pair<std::string, Tensor>> gradients;
  decoder.visit([&](Parameter& parameter) {
    if (parameter.trainable) gradients.emplace_back(peft_name(parameter.name, decoder.config()), parameter.gradient);
  });
  write_gradients(flags.out, loss, gradients);
  print_json({{"loss", loss}, {"label_tokens", batch.label_tokens}});
}

}  // namespace

void add_gradients_command(Command& nibble) {
  auto flags = std::make_shared<GradientsFlags>();
  Command command = nibble.subcommand(
      "gradients", "Gradient of the mean loss for every trainable tensor (adapter, or the whole model)");
  command.group(kCheckingTools);
  add_model_flags(command, flags->model);
  command.option("--ids", flags->ids, "Token ids, FILE.npy [B, T]");
  command.option("--labels", flags->labels, "Labels, FILE.npy [B, T]; -100 = ignored, not shifted");
  const Argument recipe = command.option("--recipe", flags->recipe,
                                         "Instead: RECIPE.json, whose first step is computed, whatever it optimizes");
  const Argument overrides = command.option("overrides", flags->overrides, "Recipe keys to change: objective.beta=0.3");
  const Argument out = command.option("--out", flags->out, "Result, FILE.safetensors, float32").required().not_empty();
  command.footer(
      "Example: nibble gradients --model llama --ids ids.npy --labels labels.npy --out gradients.safetensors");
  flags->given_beside_recipe = [=] { return command.given_besides({recipe, overrides, out}); };
  command.run([flags] { run(*flags); });
}

}  // namespace nibble::cli
