// nibble logprobs: what a model says of the answers in a file, for comparison with other software.

#include <memory>
#include <nlohmann/json.hpp>

#include "nibble/cli/command_line/model_flags.h"
#include "nibble/cli/command_line/record_flags.h"
#include "nibble/cli/commands.h"
#include "nibble/cli/printing/progress.h"
#include "nibble/cli/printing/say.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/data/records/record_reader.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/files/output_guard.h"
#include "nibble/recipes/models/tokenizers.h"
#include "nibble/recipes/preferences/answer_log_probs.h"

namespace nibble::cli {

namespace {

struct LogprobsFlags {
  ModelFlags model;
  DataOptions records;
  std::string data, format = "preference", out;
};

void run(const LogprobsFlags& flags) {
  guard_output(flags.out, {flags.model.base.path, flags.model.adapter, flags.data});
  require_own_file(
      flags.out,
      has_lines_of({{"chosen", "rejected", "chosen_tokens", "rejected_tokens"}, {"completion", "completion_tokens"}}),
      "nibble logprobs");
  for (const std::string& note : split_notes({{flags.data, 1.0}})) say(stderr, note);
  const TextSource text = text_source(flags.model, flags.records.chat_template);
  LocalRank rank(flags.model.threads);
  Decoder decoder = open_model(flags.model, rank.context());
  const Encoder encoder = open_encoder(text.tokenizer, text.chat_template, decoder.config().vocab_size);
  DataOptions options = flags.records;
  options.train = {{flags.data}};
  options.format = parse_data_format(flags.format);
  const StepContext step{.rank = rank.context(), .compute_dtype = flags.model.base.dtype()};
  std::string lines;
  ProgressPrinter printer(stderr);
  const auto watch = [&](int64_t done, int64_t of) { printer.counted("answer", done, of); };
  for (const auto& record :
       answer_log_probs(decoder, options, encoder, step, DataSplit::train, watch, length_check(decoder.config()))) {
    nlohmann::ordered_json output;
    const bool pair = options.format == DataFormat::preference;
    for (size_t k = 0; k < record.size(); ++k)
      output[pair ? (k == 0 ? "chosen" : "rejected") : "completion"] = record[k].log_prob;
    for (size_t k = 0; k < record.size(); ++k) {
      output[pair ? (k == 0 ? "chosen_tokens" : "rejected_tokens") : "completion_tokens"] = record[k].tokens;
    }
    lines += output.dump() + "\n";
  }
  write_file_atomically(flags.out, lines);
}

}  // namespace

void add_logprobs_command(Command& nibble) {
  auto flags = std::make_shared<LogprobsFlags>();
  Command command = nibble.subcommand(
      "logprobs", "Log-probabilities that a model gives to the answers in a file, a line for each record");
  command.group(kCheckingTools);
  add_model_flags(command, flags->model);
  command.option("--data", flags->data, "Records of prompts and answers, .jsonl and other formats").required();
  command.option("--format", flags->format, "prompt, chosen, rejected; or prompt, completion, label")
      .one_of({"preference", "unpaired"})
      .shows_default();
  add_record_flags(command, flags->records);
  command.option("--out", flags->out, "Result, FILE.jsonl: {\"chosen\", \"rejected\", \"chosen_tokens\", ...}")
      .required()
      .not_empty();
  command.footer("Example: nibble logprobs --model llama --adapter runs/dpo --data pairs.jsonl --out logprobs.jsonl");
  command.run([flags] { run(*flags); });
}

}  // namespace nibble::cli
