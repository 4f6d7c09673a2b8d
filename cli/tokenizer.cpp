// nibble tokenizer train: a tokenizer from text files.

#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "nibble/cli/commands.h"
#include "nibble/core/base/error.h"
#include "nibble/core/io/json_file.h"
#include "nibble/core/text/tokenizer.h"
#include "nibble/core/text/train_tokenizer.h"

namespace nibble::cli {

namespace {

using nlohmann::json;

struct TrainOptions {
  std::vector<std::string> data;
  std::string out;
  TokenizerTraining training;
  bool force = false, as_json = false;
};

// All strings in a record: a tokenizer for instructions should know the words of questions and answers.
void append_strings(const json& value, std::string& text) {
  if (value.is_string()) text.append(value.get_ref<const std::string&>()).push_back('\n');
  if (!value.is_structured()) return;
  for (const json& member : value) append_strings(member, text);
}

// The lines of the files one after the other; of .jsonl files the strings in each record.
class Lines {
 public:
  explicit Lines(const std::vector<std::string>& paths) : paths_(paths) {}

  bool next(std::string& text) {
    std::string line;
    while (!std::getline(file_, line)) {
      if (file_.is_open() && file_.bad()) throw IoError(paths_[opened_ - 1], "cannot be read to its end");
      if (opened_ == paths_.size()) return false;
      file_ = std::ifstream(paths_[opened_], std::ios::binary);
      if (!file_ || file_.peek() == std::ifstream::traits_type::eof()) {
        if (!std::filesystem::is_regular_file(paths_[opened_]))
          throw IoError(paths_[opened_], "cannot be read", "check the path and its permissions");
        file_.clear();
      }
      ++opened_;
      number_ = 0;
    }
    ++number_;
    const std::string& path = paths_[opened_ - 1];
    if (path.ends_with(".jsonl")) {
      if (line.find_first_not_of(" \t\r") != std::string::npos)
        append_strings(parse_json(line, path + ":" + std::to_string(number_)), text);
    } else {
      text = std::move(line);
    }
    text.push_back('\n');
    return true;
  }

 private:
  const std::vector<std::string>& paths_;
  std::ifstream file_;
  size_t opened_ = 0, number_ = 0;
};

void run(const TrainOptions& options) {
  Lines lines(options.data);
  const std::string model = train_sentencepiece([&](std::string& text) { return lines.next(text); }, options.training);
  write_tokenizer(model, options.out, options.force);
  const auto tokenizer = load_tokenizer(options.out);  // what was written is read back before it is called done
  const int32_t pieces = tokenizer->vocab_size();
  if (options.as_json) {
    std::cout << json{{"vocab_size", pieces}, {"out", options.out}}.dump() << '\n';
    return;
  }
  std::cout << options.out << ": " << pieces << " pieces";
  if (pieces < options.training.vocab_size) std::cout << " (the text gives no more)";
  std::cout << '\n';
}

}  // namespace

void add_tokenizer_command(Command& nibble) {
  auto options = std::make_shared<TrainOptions>();
  Command parent = nibble.subcommand("tokenizer", "Make tokenizers");
  parent.require_subcommand();
  Command command = parent.subcommand("train", "Train a tokenizer (byte-pair encoding with byte fallback)");
  command.option("--data", options->data, "text files; of .jsonl files all strings are taken").required();
  command.option("--vocab-size", options->training.vocab_size, "number of pieces").required();
  command.option("--out", options->out, "directory to write").required();
  command.flag("--force", options->force, "replace the directory if it is there");
  command.flag("--json", options->as_json, "print one JSON object");
  command.footer("Example: nibble tokenizer train --data corpus.txt --vocab-size 4096 --out tokenizer");
  command.run([options] { run(*options); });
}

}  // namespace nibble::cli
