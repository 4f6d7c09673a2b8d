// nibble preview: samples as the model sees them, with the tokens that are trained marked.

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "nibble/cli/commands.h"
#include "nibble/recipes/dry_run.h"

namespace nibble::cli {

namespace {

struct Flags {
  std::string recipe;
  std::vector<std::string> overrides;
  int64_t samples = 3;
  bool json = false;
};

void print_json(const DryRun& found) {
  nlohmann::ordered_json samples = nlohmann::ordered_json::array();
  for (const SamplePreview& sample : found.previews) {
    samples.push_back({{"ids", sample.ids}, {"tokens", sample.texts}, {"trained", sample.trained}});
  }
  const nlohmann::ordered_json said = {
      {"samples", samples}, {"tokens", found.report.tokens}, {"trained_tokens", found.report.trained_tokens}};
  std::printf("%s\n", said.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

// Trained tokens are green on a terminal and in [[ ]] elsewhere.
void print_sample(const SamplePreview& sample, bool color) {
  bool marked = false;
  for (size_t i = 0; i < sample.ids.size(); ++i) {
    if (sample.trained[i] != marked) {
      std::fputs(color ? (sample.trained[i] ? "\033[32m" : "\033[0m") : (sample.trained[i] ? "[[" : "]]"), stdout);
      marked = sample.trained[i];
    }
    std::fputs(sample.texts[i].c_str(), stdout);
  }
  if (marked) std::fputs(color ? "\033[0m" : "]]", stdout);
  std::fputs("\nids:", stdout);
  for (size_t i = 0; i < sample.ids.size(); ++i) {
    std::printf(sample.trained[i] ? " [%d]" : " %d", sample.ids[i]);
  }
  std::fputs("\n", stdout);
}

void print_lengths(const DatasetReport& report) {
  for (size_t i = 0; i < report.lengths.size(); ++i) {
    if (report.lengths[i] == 0) continue;
    const int width = static_cast<int>(40 * report.lengths[i] / std::max<int64_t>(1, report.samples));
    std::printf("%8zu..%-8zu %8lld %s\n", size_t{1} << i, (size_t{2} << i) - 1,
                static_cast<long long>(report.lengths[i]), std::string(static_cast<size_t>(width), '#').c_str());
  }
}

void run(const Flags& flags) {
  const Recipe recipe = read_recipe(flags.recipe, flags.overrides);
  Observer observer;
  observer.on_message = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  const DryRun found = dry_run(recipe, observer, flags.samples);
  if (flags.json) return print_json(found);
  const bool color = isatty(STDOUT_FILENO) == 1;
  for (size_t i = 0; i < found.previews.size(); ++i) {
    std::printf("--- sample %zu: %zu tokens\n", i + 1, found.previews[i].ids.size());
    print_sample(found.previews[i], color);
  }
  std::printf("--- lengths in tokens\n");
  print_lengths(found.report);
}

}  // namespace

void add_preview_command(Command& nibble) {
  auto flags = std::make_shared<Flags>();
  Command command = nibble.subcommand("preview", "Show samples as the model sees them and which tokens are trained");
  command.option("recipe", flags->recipe, "RECIPE.json").required();
  command.option("overrides", flags->overrides, "Recipe keys to change: data.train=my.jsonl");
  command.option("--samples", flags->samples, "How many samples to show").at_least(1);
  command.flag("--json", flags->json, "One JSON object on stdout");
  command.footer("Example: nibble preview qlora.json model.path=llama data.train=my.jsonl output.dir=runs/mine");
  command.run([flags] { run(*flags); });
}

}  // namespace nibble::cli
