// nibble score: what a model's score head says of the texts in a file.

#include <memory>
#include <nlohmann/json.hpp>

#include "nibble/cli/command_line/model_flags.h"
#include "nibble/cli/command_line/record_flags.h"
#include "nibble/cli/commands.h"
#include "nibble/cli/printing/say.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/data/records/record_reader.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/files/output_guard.h"
#include "nibble/core/objectives/options.h"
#include "nibble/recipes/evaluation/pair_accuracy.h"
#include "nibble/recipes/models/tokenizers.h"
#include "nibble/recipes/preferences/text_scores.h"

namespace nibble::cli {

namespace {

struct ScoreFlags {
  ModelFlags model;
  DataOptions records;
  std::string data, format = "preference", out, score_at = "last_token";
};

nlohmann::ordered_json output(const std::vector<float>& scores) {
  if (scores.size() == 1) return scores.front();
  return scores;
}

void run(const ScoreFlags& flags) {
  guard_output(flags.out, {flags.model.base.path, flags.model.adapter, flags.data});
  require_own_file(flags.out, has_lines_of({{"score"}, {"chosen", "rejected"}}), "nibble score");
  for (const std::string& note : split_notes({{flags.data, 1.0}})) say(stderr, note);
  const TextSource text = text_source(flags.model, flags.records.chat_template);
  LocalRank rank(flags.model.threads);
  warn_of_other_base(flags.model);
  ModelRecipe base = flags.model.base;
  base.score = ScoreHead{0, flags.model.adapter};
  Decoder decoder = open_model(base, flags.model.adapter, Train::nothing, rank.context());
  ObjectiveOptions objective;
  if (flags.score_at == "last_non_pad") objective.score_at = ScoreAt::last_non_pad;
  objective = with_score_head(objective, decoder.config());
  const Encoder encoder = open_encoder(text.tokenizer, text.chat_template, decoder.config().vocab_size);
  DataOptions options = flags.records;
  options.train = {{flags.data}};
  options.format = parse_data_format(flags.format);
  options.chat_template = text.chat_template;  // as in the training
  const StepContext step{.rank = rank.context(), .compute_dtype = flags.model.base.dtype()};
  std::string lines;
  PairAccuracy pairs;
  for (const auto& record :
       text_scores(decoder, options, encoder, step, objective.pad_id, length_check(decoder.config()))) {
    nlohmann::ordered_json line;
    if (options.format == DataFormat::preference) {
      line = {{"chosen", output(record[0])}, {"rejected", output(record[1])}};
      if (record[0].size() == 1) pairs.add(record[0][0], record[1][0]);
    } else {
      line = {{"score", output(record[0])}};
    }
    lines += line.dump() + "\n";
  }
  write_file_atomically(flags.out, lines);
  if (pairs.asked > 0) say(stdout, pairs.text());
}

}  // namespace

void add_score_command(Command& nibble) {
  auto flags = std::make_shared<ScoreFlags>();
  Command command = nibble.subcommand(
      "score", "Scores that a reward model or a classifier gives to the texts in a file, a line for each record");
  add_model_flags(command, flags->model);
  command.option("--data", flags->data, "Records of texts, .jsonl and other formats").required();
  command
      .option("--format", flags->format,
              "text, messages or input_ids; prompt, chosen, rejected; or prompt, completion, label")
      .one_of({"labeled", "preference", "unpaired"})
      .shows_default();
  command
      .option("--score-at", flags->score_at,
              "Token that is scored; last_non_pad: the last that is not pad_token_id, as Transformers finds it")
      .one_of({"last_token", "last_non_pad"})
      .shows_default();
  add_record_flags(command, flags->records);
  command.option("--out", flags->out, "Result, FILE.jsonl: {\"score\": x or [x, ...]} or {\"chosen\", \"rejected\"}")
      .required()
      .not_empty();
  command.footer("Example: nibble score --model llama --adapter runs/reward --data pairs.jsonl --out scores.jsonl");
  command.run([flags] { run(*flags); });
}

}  // namespace nibble::cli
