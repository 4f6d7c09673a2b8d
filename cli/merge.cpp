// nibble merge: an adapter into its base, one tensor at a time.

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "nibble/cli/command_line/model_flags.h"
#include "nibble/cli/commands.h"
#include "nibble/cli/printing/say.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/recipes/models/merge_model.h"

namespace nibble::cli {

namespace {

struct MergeFlags {
  MergeRequest request;
  bool json = false;
};

void run(const MergeFlags& flags) {
  check_merge(flags.request);
  LocalRank rank;
  if (const std::string warning = merge_warning(flags.request); !warning.empty()) {
    say(stderr, warning);
  }
  for (const std::string& note : merge_notes(flags.request)) say(stderr, "note: " + note);
  const MergeReport report = merge_model(flags.request, rank.context());
  const bool rounded = flags.request.dtype == "nf4";
  if (rounded && report.mean_rounding > report.mean_change / 2) {
    say(stderr,
        "warning: rounding to 4 bits again moves weights at least half as far as the adapter does: what it learnt may "
        "be lost; --dtype bf16 keeps it");
  }
  if (flags.json) {
    nlohmann::ordered_json result = {
        {"modules", report.modules}, {"max_change", report.max_change}, {"mean_change", report.mean_change}};
    if (rounded) result["mean_rounding"] = report.mean_rounding;
    return print_json(result);
  }
  const std::string rounding =
      rounded ? formatted(", and by %.3g on average by rounding to 4 bits again", report.mean_rounding) : "";
  say(stdout, "merged %s into %s; weights changed by %.3g on average, %.3g at most%s",
      count_text(report.modules, "module").c_str(), flags.request.out.c_str(), report.mean_change, report.max_change,
      rounding.c_str());
}

}  // namespace

void add_merge_command(Command& nibble) {
  auto flags = std::make_shared<MergeFlags>();
  MergeRequest& request = flags->request;
  Command command = nibble.subcommand("merge", "Merge an adapter into its base: a model directory without adapter");
  adapter_option(command, request.adapter, "PEFT adapter directory, or a run's").required();
  model_option(command, request.model, "Base model (default: the one that the adapter names)");
  command.option("--out", request.out, "Directory to write").required().not_empty();
  command
      .option("--base", request.base,
              "Weights to merge into: dequantized (what a 4-bit adapter was trained against) or original")
      .one_of({"dequantized", "original"});
  command.option("--dtype", request.dtype, "Dtype of the result: bf16, f16, f32 or nf4")
      .one_of({"bf16", "f16", "f32", "nf4"})
      .shows_default();
  command.force_flag(request.replace, "a directory that nibble wrote");
  command.flag("--json", flags->json, "One JSON object on stdout");
  command.footer("Example: nibble merge --adapter runs/mine/adapter --model llama-nf4 --out llama-mine");
  command.run([flags] { run(*flags); });
}

}  // namespace nibble::cli
