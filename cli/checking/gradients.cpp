// nibble gradients: loss and the gradient of every trainable tensor, for comparison with other software.

#include <memory>
#include <nlohmann/json.hpp>

#include "nibble/cli/command_line/model_flags.h"
#include "nibble/cli/commands.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/io/files/output_guard.h"
#include "nibble/core/io/safetensors/safetensors.h"

namespace nibble::cli {

namespace {

struct Flags {
  ModelFlags model;
  std::string ids, labels, out;
};

std::vector<Sample> read_samples(const Flags& flags) {
  const auto ids = read_id_rows(flags.ids, "--ids"), labels = read_id_rows(flags.labels, "--labels");
  if (ids.size() != labels.size()) throw InputError(flags.labels, "has another number of rows than " + flags.ids);
  std::vector<Sample> samples;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i].size() != labels[i].size()) throw InputError(flags.labels, "has another row length than " + flags.ids);
    samples.push_back({.ids = ids[i], .labels = labels[i], .index = i});
  }
  return samples;
}

void run(const Flags& flags) {
  guard_output(flags.out, {flags.model.base.path, flags.model.adapter, flags.ids, flags.labels});
  const std::vector<Sample> samples = read_samples(flags);
  LocalRank rank(flags.model.threads);
  const Train train = flags.model.adapter.empty() ? Train::everything : Train::adapter;
  Decoder decoder = open_model(flags.model.base, flags.model.adapter, train, rank.context());
  const Batch batch = make_batch(samples, rank.context().pool);
  if (batch.label_tokens == 0)
    throw InputError(flags.labels, "has no label token", "labels other than -100 are needed");
  const StepContext step{.rank = rank.context(), .compute_dtype = compute_dtype_of(flags.model.compute_dtype)};
  const double tokens = static_cast<double>(batch.label_tokens);
  const double loss = decoder.loss_sum_and_gradients(batch, step, static_cast<float>(1.0 / tokens)) / tokens;

  std::vector<std::pair<std::string, Tensor>> gradients;
  decoder.visit([&](Parameter& parameter) {
    if (parameter.trainable) gradients.emplace_back(parameter.name, parameter.gradient);
  });
  write_safetensors(flags.out, gradients);
  const nlohmann::ordered_json said = {{"loss", loss}, {"label_tokens", batch.label_tokens}};
  std::printf("%s\n", said.dump().c_str());
}

}  // namespace

void add_gradients_command(Command& nibble) {
  auto flags = std::make_shared<Flags>();
  Command command = nibble.subcommand(
      "gradients", "Gradient of the mean loss for every trainable tensor (adapter, or the whole model)");
  add_model_flags(command, flags->model);
  command.option("--ids", flags->ids, "Token ids, FILE.npy [B, T]").required();
  command.option("--labels", flags->labels, "Labels, FILE.npy [B, T]; -100 = ignored, not shifted").required();
  command.option("--out", flags->out, "Result, FILE.safetensors, float32").required();
  command.footer(
      "Example: nibble gradients --model llama --ids ids.npy --labels labels.npy --out gradients.safetensors");
  command.run([flags] { run(*flags); });
}

}  // namespace nibble::cli
