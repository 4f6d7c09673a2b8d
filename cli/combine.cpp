// nibble combine: several adapters into one.

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "nibble/adapters/merging/combine.h"
#include "nibble/cli/commands.h"
#include "nibble/cli/printing/say.h"
#include "nibble/core/base/error.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/io/files/output_guard.h"
#include "nibble/core/io/hub/run_result.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/recipes/models/fingerprints.h"
#include "nibble/recipes/models/tokenizers.h"

namespace nibble::cli {

namespace {

struct CombineFlags {
  std::vector<std::string> adapters;
  std::vector<double> weights;
  std::string method = "svd", majority = "total", out;
  CombineOptions options;
  Replace replace = Replace::nothing;
  bool json = false;
  std::vector<Argument> of_signs, of_drops;
};

// The record of the base that all adapters were trained on; "" where one has none, or another.
std::string base_of_all(const std::vector<std::string>& adapters) {
  std::string all;
  for (const std::string& adapter : adapters) {
    const std::filesystem::path file = std::filesystem::path(adapter) / kBaseFile;
    const std::string record = std::filesystem::is_regular_file(file) ? read_text_file(file) : "";
    if (record.empty() || (!all.empty() && record != all)) return "";
    all = record;
  }
  return all;
}

void run(CombineFlags flags) {
  if (flags.weights.size() != flags.adapters.size()) {
    throw UsageError(count_text(std::ssize(flags.adapters), "adapter") + " and " +
                         count_text(std::ssize(flags.weights), "weight") + " are given",
                     "give each --adapter its --weight");
  }
  for (std::string& adapter : flags.adapters) adapter = find_adapter(adapter);
  set_combine_method(flags.method, flags.options);
  using enum CombineMethod;
  const CombineMethod method = flags.options.method;
  const std::string with = "with --method " + flags.method;
  if (method != ties && method != dare_ties) refuse_given(flags.of_signs, with, "leave it out: it is for ties");
  if (method != dare_linear && method != dare_ties) refuse_given(flags.of_drops, with, "leave it out: it is for dare");
  flags.options.by_count = flags.majority == "frequency";
  guard_output(flags.out, {flags.adapters.begin(), flags.adapters.end()});
  require_place(flags.out, flags.replace);
  if (const std::string warning = bases_warning(flags.adapters); !warning.empty()) say(stderr, warning);
  LocalRank rank;
  std::vector<PeftAdapter> adapters;
  for (const std::string& directory : flags.adapters) adapters.push_back(read_peft_directory(directory));
  std::vector<CombineSource> sources;
  for (size_t i = 0; i < adapters.size(); ++i) sources.push_back({&adapters[i], flags.weights[i]});
  const CombinedAdapter result = combine_adapters(sources, flags.options, rank.context().pool);
  const AdapterCompanions first{.tokenizer = flags.adapters.front(), .base = base_of_all(flags.adapters)};
  for (const std::string& other : flags.adapters) {
    const TextSource text = find_text_source(first.tokenizer.string(), other, "");
    if (text.notes.empty() && text.chat_template.empty()) continue;
    say(stderr, "note: %s has another tokenizer or chat template than %s, whose are kept", other.c_str(),
        first.tokenizer.c_str());
  }
  write_peft_directory(flags.out, result.options, result.tensors, flags.replace, first);
  const size_t modules = result.tensors.size() / 2;
  if (flags.json) return print_json({{"modules", modules}, {"r", result.options.r}});
  say(stdout, "combined %s into %s: %s, rank %lld", count_text(std::ssize(adapters), "adapter").c_str(),
      flags.out.c_str(), count_text(static_cast<int64_t>(modules), "module").c_str(),
      static_cast<long long>(result.options.r));
}

}  // namespace

void add_combine_command(Command& nibble) {
  auto flags = std::make_shared<CombineFlags>();
  Command command = nibble.subcommand("combine", "Make one adapter of several, as PEFT's add_weighted_adapter");
  command.option("--adapter", flags->adapters, "PEFT adapter directory, or a run's; once for each").required();
  command.option("--weight", flags->weights, "Its weight, in the same order; may be negative").required();
  command
      .option(
          "--method", flags->method,
          "linear (on A and B: not the sum of the changes), cat (exactly the sum, ranks add up), svd (the sum brought "
          "to --rank), ties, dare_linear, dare_ties, magnitude_prune; these four also with _svd")
      .one_of({"linear", "cat", "svd", "ties", "ties_svd", "dare_linear", "dare_linear_svd", "dare_ties",
               "dare_ties_svd", "magnitude_prune", "magnitude_prune_svd"})
      .shows_default();
  command.option("--density", flags->options.density, "Share of elements kept, for ties, dare and magnitude_prune")
      .between(0, 1);
  command.option("--rank", flags->options.rank, "Rank of the result with svd (default: the largest of the sources)")
      .at_least(1);
  flags->of_signs = {
      command.option("--majority-sign", flags->majority, "How ties elects a sign: by the sums or by counting")
          .one_of({"total", "frequency"})
          .shows_default()};
  flags->of_drops = {command.option("--seed", flags->options.seed, "Decides what dare drops")};
  command.option("--out", flags->out, "Directory to write").required().not_empty();
  command.force_flag(flags->replace, "a directory that nibble wrote");
  command.flag("--json", flags->json, "One JSON object on stdout");
  command.footer(
      "Example: nibble combine --adapter runs/poems/adapter --weight 0.7 --adapter runs/prose/adapter --weight 0.3 "
      "--method cat --out both");
  command.run([flags] { run(*flags); });
}

}  // namespace nibble::cli
