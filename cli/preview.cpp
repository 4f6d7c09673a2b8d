// nibble preview: samples as the model sees them, with the tokens that are trained marked.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "nibble/cli/commands.h"
#include "nibble/cli/printing/say.h"
#include "nibble/cli/printing/wrap.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/text/unicode/visible_text.h"
#include "nibble/recipes/plan/dry_run.h"
#include "nibble/recipes/training/training_data.h"

namespace nibble::cli {

namespace {

struct PreviewFlags {
  std::string recipe;
  std::vector<std::string> overrides;
  int64_t samples = 3;
  bool json = false;
};

using Json = nlohmann::ordered_json;

// A record of answers to a prompt: both of a pair, or one with its verdict.
Json answers_of(std::span<const SamplePreview> record) {
  const auto part = [](const SamplePreview& sample, size_t begin, size_t end) {
    return Json(std::vector<int32_t>(sample.ids.begin() + static_cast<ptrdiff_t>(begin),
                                     sample.ids.begin() + static_cast<ptrdiff_t>(end)));
  };
  const auto answer = [&](const SamplePreview& sample) { return part(sample, sample.answer, sample.ids.size()); };
  Json output = {{"prompt_ids", part(record[0], 0, record[0].answer)}};
  if (record.size() == 2) {
    output["chosen_ids"] = answer(record[0]);
    output["rejected_ids"] = answer(record[1]);
  } else {
    output["completion_ids"] = answer(record[0]);
    output["label"] = record[0].values.front() != 0;
  }
  return output;
}

Json samples_of(const DryRun& found) {
  Json samples = Json::array();
  const bool answers = found.format == DataFormat::preference || found.format == DataFormat::unpaired;
  for (size_t i = 0; i < found.previews.size(); ++i) {
    const SamplePreview& sample = found.previews[i];
    if (answers) {
      const size_t count = found.format == DataFormat::preference ? 2 : 1;
      samples.push_back(answers_of({&sample, count}));
      i += count - 1;
    } else if (found.format == DataFormat::labeled) {
      const std::vector<float>& label = sample.values;
      samples.push_back({{"input_ids", sample.ids}, {"label", label.size() == 1 ? Json(label.front()) : Json(label)}});
    } else {
      std::vector<int32_t> labels = sample.ids;
      for (size_t k = 0; k < labels.size(); ++k) {
        if (!sample.trained[k]) labels[k] = kIgnoreLabel;
      }
      samples.push_back({{"input_ids", sample.ids}, {"labels", labels}, {"tokens", sample.texts}});
    }
  }
  return samples;
}

void print_as_json(const DryRun& found) {
  const DatasetReport& report = found.report;
  print_json({{"samples", samples_of(found)},
              {"tokens", report.tokens},
              {"trained_tokens", report.trained_tokens},
              {"trained_share", report.trained_share()},
              {"longest", report.longest},
              {"truncated", report.truncated},
              {"truncated_tokens", report.truncated_tokens},
              {"dropped_long", report.dropped_long},
              {"dropped_untrained", report.dropped_untrained},
              {"empty_answers", report.empty_answers},
              {"duplicate_bos", report.duplicate_bos},
              {"samples_without_end", found.samples_without_end}});
}

// Trained tokens are green on a terminal and in [[ ]] elsewhere.
void print_sample(const SamplePreview& sample, bool color) {
  bool marked = false;
  for (size_t i = 0; i < sample.ids.size(); ++i) {
    if (sample.trained[i] != marked) {
      std::fputs(color ? (sample.trained[i] ? "\033[32m" : "\033[0m") : (sample.trained[i] ? "[[" : "]]"), stdout);
      marked = sample.trained[i];
    }
    std::fputs(visible_text(sample.texts[i], Lines::many).c_str(), stdout);
  }
  if (marked) std::fputs(color ? "\033[0m" : "]]", stdout);
  std::fputs("\nids:", stdout);
  for (size_t i = 0; i < sample.ids.size(); ++i) {
    std::printf(sample.trained[i] ? " [%d]" : " %d", sample.ids[i]);
  }
  std::fputs("\n", stdout);
}

void print_lengths(const DatasetReport& report) {
  const auto columns = static_cast<int64_t>(terminal_columns(stdout));
  const int64_t longest = columns > 0 ? std::clamp<int64_t>(columns - 28, 1, 40) : 40;  // beside the numbers
  const int64_t most = std::max<int64_t>(1, *std::max_element(report.lengths.begin(), report.lengths.end()));
  for (size_t i = 0; i < report.lengths.size(); ++i) {
    if (report.lengths[i] == 0) continue;
    const size_t width = static_cast<size_t>(std::max<int64_t>(1, longest * report.lengths[i] / most));
    std::printf("%8zu..%-8zu %8lld %s\n", size_t{1} << i, (size_t{2} << i) - 1,
                static_cast<long long>(report.lengths[i]), std::string(width, '#').c_str());
  }
}

// What becomes of the data under this recipe.
void print_summary(const DryRun& found, bool trains) {
  const DatasetReport& report = found.report;
  const auto print = [](const std::string& line) { say(stdout, line); };
  print("--- data");
  print(count_text(report.samples, "sample") + ", " + count_text(report.tokens, "token") +
        (trains ? formatted(", %.1f%% of them trained", 100 * report.trained_share()) : "") +
        "; the longest sample has " + count_text(report.longest, "token"));
  if (report.truncated > 0) {
    print("cut to data.max_length: " + count_text(report.truncated, "sample") + ", which lose " +
          count_text(report.truncated_tokens, "token") + " at their end");
  }
  if (report.dropped_long > 0) print("dropped as too long: " + count_text(report.dropped_long, "sample"));
  if (report.dropped_untrained > 0) {
    print("dropped because no token is trained: " + count_text(report.dropped_untrained, "sample"));
  }
  if (report.empty_answers > 0) {
    print("empty answers or texts, of which the end alone is trained: " + count_text(report.empty_answers, "record"));
  }
  print(count_text(found.total_steps, "step") + "; the first has " + count_text(found.first_step.tokens, "token") +
        (trains ? ", " + grouped_text(found.first_step.label_tokens) + " of them trained" : ""));
}

void run(const PreviewFlags& flags) {
  Recipe recipe = read_recipe(flags.recipe, flags.overrides);
  const double max_dropped = std::exchange(recipe.data.max_dropped, 1);  // shows what training refuses
  Observer observer;
  observer.on_message = [](const std::string& line) { say(stderr, line); };
  const DryRun found = dry_run(recipe, observer, flags.samples);
  const DatasetReport& counts = found.report;
  if (counts.exceeds(max_dropped)) {
    say(stderr,
        "warning: train refuses these data: more than data.max_dropped (%g) of the records are dropped, empty or equal",
        max_dropped);
  }
  if (flags.json) return print_as_json(found);
  const char* no_color = std::getenv("NO_COLOR");  // no-color.org
  const bool color = isatty(STDOUT_FILENO) == 1 && (no_color == nullptr || *no_color == 0);
  for (size_t i = 0; i < found.previews.size(); ++i) {
    std::printf("--- sample %zu: %zu tokens\n", i + 1, found.previews[i].ids.size());
    print_sample(found.previews[i], color);
  }
  std::printf("--- lengths in tokens\n");
  print_lengths(found.report);
  print_summary(found, trains_tokens(recipe));
}

}  // namespace

void add_preview_command(Command& nibble) {
  auto flags = std::make_shared<PreviewFlags>();
  Command command = nibble.subcommand("preview", "Show samples as the model sees them and which tokens are trained");
  command.option("recipe", flags->recipe, "RECIPE.json").required();
  command.option("overrides", flags->overrides, "Recipe keys to change: data.train=my.jsonl");
  command.option("--samples", flags->samples, "How many samples to show").at_least(1);
  command.flag("--json", flags->json, "One JSON object on stdout");
  command.footer("Example: nibble preview qlora.json model.path=llama data.train=my.jsonl output.dir=runs/mine");
  command.run([flags] { run(*flags); });
}

}  // namespace nibble::cli
