// nibble eval: loss, perplexity and exact match of a model on a file, accuracy on questions with choices and on pairs.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "nibble/cli/command_line/model_flags.h"
#include "nibble/cli/command_line/record_flags.h"
#include "nibble/cli/commands.h"
#include "nibble/cli/printing/progress.h"
#include "nibble/cli/printing/say.h"
#include "nibble/core/base/error.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/data/records/record_reader.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/recipes/evaluation/evaluate_model.h"
#include "nibble/recipes/evaluation/multiple_choice.h"
#include "nibble/recipes/evaluation/pair_accuracy.h"
#include "nibble/recipes/evaluation/text_lengths.h"
#include "nibble/recipes/models/tokenizers.h"
#include "nibble/recipes/preferences/answer_log_probs.h"
#include "nibble/recipes/training/training_data.h"

namespace nibble::cli {

namespace {

struct EvalFlags {
  ModelFlags model;
  DataOptions data;
  std::vector<std::string> files;
  std::string format = "auto", truncate = "cut";
  bool exact_match = false, json = false;
  std::vector<Argument> of_losses, of_answers;  // options for the loss alone, and for --exact-match
  Argument limit_flag{nullptr};
  int64_t limit = 0, max_new_tokens = 256;
  std::string answer = "all", pattern;
};

void print(const Evaluation& loss, const ExactMatch& match, const EvalFlags& flags) {
  if (flags.json) {
    nlohmann::ordered_json output = {
        {"loss", loss.loss}, {"perplexity", loss.perplexity}, {"label_tokens", loss.label_tokens}};
    if (flags.exact_match) {
      output["exact_match"] = match.share();
      output["asked"] = match.asked;
    }
    return print_json(output);
  }
  std::printf("loss %.5f, perplexity %.3f over %s\n", loss.loss, loss.perplexity,
              count_text(loss.label_tokens, "token").c_str());
  if (flags.exact_match) {
    std::printf("exact match %.1f%% (%lld of %lld)\n", 100 * match.share(), static_cast<long long>(match.right),
                static_cast<long long>(match.asked));
  }
}

void run_choices(const EvalFlags& flags) {
  if (!flags.data.fields.empty()) throw UsageError("--fields with --format choices", "rename the fields in the file");
  if (!flags.data.chat_template.empty() || flags.data.hidden_parts == HiddenParts::drop) {
    throw UsageError("--template and --hidden-parts with --format choices",
                     "leave them out: questions are asked as they stand");
  }
  const std::vector<ChoiceQuestion> questions = read_choice_questions(flags.data.train);
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(text_source(flags.model).tokenizer);
  LocalRank rank(flags.model.threads);
  Decoder decoder = open_model(flags.model, rank.context());
  const StepContext step{.rank = rank.context(), .compute_dtype = flags.model.base.dtype()};
  const ChoiceAccuracy found = multiple_choice(decoder, *tokenizer, questions, flags.limit, step);
  if (flags.json)
    return print_json(
        {{"accuracy", found.share()}, {"accuracy_normalized", found.share_normalized()}, {"asked", found.asked}});
  std::printf("accuracy %.1f%% (%lld of %lld), %.1f%% by likelihood per byte\n", 100 * found.share(),
              static_cast<long long>(found.right), static_cast<long long>(found.asked), 100 * found.share_normalized());
}

void print(const PairAccuracy& pairs, bool as_json) {
  if (as_json) return print_json({{"accuracy", pairs.share()}, {"margin", pairs.margin()}, {"asked", pairs.asked}});
  say(stdout, pairs.text() + " between log-probabilities");
}

// Bad answers, classes and prompts have no loss that says how good a model is.
void check_format(const EvalFlags& flags) {
  constexpr DataFormat kOthers[] = {DataFormat::unpaired, DataFormat::labeled, DataFormat::prompts,
                                    DataFormat::rollouts};
  if (std::ranges::count(kOthers, flags.data.format) > 0) {
    throw UsageError("--format " + flags.format + " has no answers whose loss says how good a model is",
                     "see nibble logprobs and nibble score; --format completion takes every answer as good");
  }
}

// How --answer compares; nothing where all tokens count.
std::optional<AnswerComparison> comparison_of(const EvalFlags& flags, const Tokenizer* tokenizer) {
  if ((flags.answer == "regex") == flags.pattern.empty()) {
    throw UsageError("--answer regex and --pattern go together", "write --answer regex --pattern '#### (.*)'");
  }
  if (flags.answer == "all") return std::nullopt;
  const AnswerRule rule = flags.answer == "number"  ? AnswerRule::number()
                          : flags.answer == "regex" ? AnswerRule::regex(flags.pattern)
                                                    : AnswerRule::last_line();
  return AnswerComparison{rule, *tokenizer, flags.max_new_tokens};
}

void run(EvalFlags flags) {
  const bool has_loss = flags.format != "choices" && flags.format != "preference";
  if (!has_loss && std::ranges::any_of(flags.of_losses, &Argument::given)) {
    throw UsageError("--max-length, --truncate and --train-on-prompt with --format " + flags.format,
                     "leave them out: they are for the loss on texts");
  }
  if (flags.exact_match && !has_loss) {
    throw UsageError("--exact-match with --format " + flags.format, "leave one of them out");
  }
  const bool limits_answers = flags.format != "choices" && flags.limit_flag.given();
  if (!flags.exact_match && (limits_answers || std::ranges::any_of(flags.of_answers, &Argument::given))) {
    throw UsageError("--answer, --pattern, --max-new-tokens and --limit without --exact-match",
                     "add it, or leave them out: they are for answers that it compares");
  }
  for (const std::string& file : flags.files) flags.data.train.push_back({file, 1.0});
  if (flags.format == "choices") {
    for (const std::string& note : split_notes(flags.data.train, DataSplit::eval)) say(stderr, note);
    return run_choices(flags);
  }
  flags.data.format = parse_data_format(flags.format);
  flags.data.truncate = parse_truncate(flags.truncate);
  check_format(flags);
  check_data_options(flags.data);
  for (const std::string& note : split_notes(flags.data.train, DataSplit::eval)) say(stderr, note);
  const TextSource text = text_source(flags.model, flags.data.chat_template);
  const std::unique_ptr<Tokenizer> tokenizer = flags.answer == "all" ? nullptr : load_tokenizer(text.tokenizer);
  const std::optional<AnswerComparison> comparison = comparison_of(flags, tokenizer.get());
  flags.data.chat_template = text.chat_template;  // as in the training, for prompts and answers too
  LocalRank rank(flags.model.threads);
  Decoder decoder = open_model(flags.model, rank.context());
  const StepContext step{.rank = rank.context(), .compute_dtype = flags.model.base.dtype()};
  // The adapter may have brought rows for tokens that were added.
  const Encoder encoder = open_encoder(text.tokenizer, text.chat_template, decoder.config().vocab_size);
  for (const std::string& line : missing_mark_warnings(text.chat_template, encoder)) {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
  Evaluation loss;
  ExactMatch match;
  PairAccuracy pairs;
  {
    ProgressPrinter printer(stderr);
    const auto watch = [&](const std::string& what) {
      return [&printer, what](int64_t done, int64_t of) { printer.counted(what, done, of); };
    };
    if (flags.data.format == DataFormat::preference) {
      for (const auto& pair : answer_log_probs(decoder, flags.data, encoder, step, DataSplit::eval, watch("evaluation"),
                                               length_check(decoder.config()))) {
        pairs.add(pair[0].log_prob, pair[1].log_prob);
      }
    } else {
      const auto tell = [&](const std::string& line) { say(stderr, line); };
      const auto tell_left_out = [&](const Dataset& samples) {
        check_text_lengths(samples, decoder.config(), flags.data.max_length, "lower --max-length", tell);
        const DatasetReport& report = samples.report();
        const std::string left_out = left_out_text(report);
        const bool by_length = report.truncated + report.dropped_long > 0;
        const std::string limit = " (--max-length is " + std::to_string(flags.data.max_length) + ")";
        if (!left_out.empty()) say(stderr, "note: " + left_out + (by_length ? limit : ""));
      };
      loss = evaluate_loss(decoder, flags.data, encoder, step.compute_dtype, rank.context(), watch("evaluation"),
                           tell_left_out);
    }
    if (flags.exact_match) {
      match = exact_match(decoder, flags.data, encoder, flags.limit, step, comparison, watch("answer"));
    }
  }
  pairs.asked > 0 ? print(pairs, flags.json) : print(loss, match, flags);
}

}  // namespace

void add_eval_command(Command& nibble) {
  auto flags = std::make_shared<EvalFlags>();
  Command command =
      nibble.subcommand("eval", "Loss and perplexity on a file, exact match of answers, accuracy on choices or pairs");
  add_model_flags(command, flags->model);
  command.option("--data", flags->files, "File, directory or glob; may be given several times").required();
  command
      .option("--format", flags->format,
              "auto, alpaca, chat, completion, text, tokens; choices: questions with choices and an answer; "
              "preference: pairs")
      .shows_default();
  add_record_flags(command, flags->data);
  flags->of_losses = {
      command.option("--max-length", flags->data.max_length, "Tokens of a sequence").shows_default(),
      command.option("--truncate", flags->truncate, "What happens to longer samples: cut, drop or error")
          .shows_default(),
      command.flag("--train-on-prompt", flags->data.train_on_prompt, "Count the prompt's tokens as well")};
  command.flag("--exact-match", flags->exact_match, "Also answer each prompt greedily and compare");
  flags->of_answers = {
      command
          .option("--answer", flags->answer,
                  "What of an answer --exact-match compares: all, number (the last), last-line, regex")
          .one_of({"all", "number", "last-line", "regex"})
          .shows_default(),
      command.option("--pattern", flags->pattern, "Of --answer regex: the first group of the last match counts"),
      command.option("--max-new-tokens", flags->max_new_tokens, "Longest answer to look for a number, line or match in")
          .at_least(1)
          .shows_default()};
  flags->limit_flag =
      command.option("--limit", flags->limit, "Prompts or questions to answer at most (0: all)").at_least(0);
  command.flag("--json", flags->json, "One JSON object on stdout");
  command.footer("Example: nibble eval --model llama --adapter runs/mine/adapter --data heldout.jsonl");
  command.run([flags] { run(*flags); });
}

}  // namespace nibble::cli
