// nibble tokenizer train: a tokenizer from text files.

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "nibble/cli/commands.h"
#include "nibble/cli/printing/say.h"
#include "nibble/core/data/records/record_reader.h"
#include "nibble/core/data/tokenizer_corpus.h"
#include "nibble/core/io/files/output_guard.h"
#include "nibble/core/text/tokenizers/tokenizer.h"
#include "nibble/core/text/tokenizers/train_tokenizer.h"
#include "nibble/core/text/unicode/visible_text.h"

namespace nibble::cli {

namespace {

using nlohmann::json;

struct TrainOptions {
  std::vector<std::string> data;
  std::string out;
  TokenizerTraining training;
  Replace replace = Replace::nothing;
  bool as_json = false;
};

void run(const TrainOptions& options) {
  std::vector<DataSource> sources;
  for (const std::string& path : options.data) sources.push_back({path});
  guard_output(options.out, data_paths(sources));
  require_place(options.out, options.replace);
  for (const std::string& note : split_notes(sources)) say(stderr, note);
  TokenizerCorpus corpus(sources);
  const std::string model = train_sentencepiece([&](std::string& text) { return corpus.next(text); }, options.training);
  write_tokenizer(model, options.out, options.replace);
  const auto tokenizer = load_tokenizer(options.out);  // what was written is read back before it is called done
  const int32_t pieces = tokenizer->vocab_size();
  if (options.as_json) {
    std::cout << json{{"vocab_size", pieces}, {"out", options.out}}.dump() << '\n';
    return;
  }
  std::cout << visible_text(options.out) << ": " << pieces << " pieces";
  if (pieces < options.training.vocab_size) std::cout << " (the text gives no more)";
  std::cout << '\n';
}

}  // namespace

void add_tokenizer_command(Command& nibble) {
  auto options = std::make_shared<TrainOptions>();
  Command parent = nibble.subcommand("tokenizer", "Make tokenizers");
  parent.require_subcommand();
  Command command = parent.subcommand("train", "Train a tokenizer (byte-pair encoding with byte fallback)");
  command.option("--data", options->data, "text or JSON files, of which all strings are taken; directories, globs")
      .required();
  command.option("--vocab-size", options->training.vocab_size, "number of pieces").required();
  command.option("--out", options->out, "directory to write").required().not_empty();
  command.force_flag(options->replace, "a directory that nibble wrote");
  command.flag("--json", options->as_json, "print one JSON object");
  command.footer("Example: nibble tokenizer train --data corpus.txt --vocab-size 4096 --out tokenizer");
  command.run([options] { run(*options); });
}

}  // namespace nibble::cli
