// nibble tokenize: text to ids and back.

#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "nibble/cli/command_line/model_flags.h"
#include "nibble/cli/commands.h"
#include "nibble/cli/printing/say.h"
#include "nibble/core/base/error.h"
#include "nibble/core/data/records/json_record.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/io/json/mistaken_file.h"
#include "nibble/core/text/tokenizers/tokenizer.h"
#include "nibble/core/text/unicode/utf8.h"

namespace nibble::cli {

namespace {

using nlohmann::json;

struct TokenizeOptions {
  std::string model, text, file, jsonl, decode_ids;
  bool no_special = false, skip_special = false, as_json = false, decode = false;
  std::vector<Argument> of_ids, of_text;  // flags for --decode, and for text
};

constexpr size_t kMaxTextFile = size_t{1} << 30;

// The ids of a JSON array, or of a comma-separated list.
std::vector<int32_t> read_ids(const json& value, const Tokenizer& tokenizer, const std::string& place) {
  if (!value.is_array()) throw InputError(place, "is not a list of token ids");
  std::vector<int32_t> ids;
  for (const json& id : value) {
    if (!id.is_number_integer() || id < 0 || id >= tokenizer.vocab_size())
      throw InputError(
          place, json_line(id) + " is no token id of the vocabulary of " + std::to_string(tokenizer.vocab_size()));
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

void run_lines(const TokenizeOptions& options, const Tokenizer& tokenizer) {
  std::ifstream file(options.jsonl, std::ios::binary);
  if (!file) throw IoError(options.jsonl, "cannot be read", "check the path and its permissions");
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == line.npos) continue;  // as RecordReader
    const std::string place = options.jsonl + ":" + std::to_string(number);
    const json value(parse_record(options.jsonl, {.text = line, .line = number}));
    json answer;
    if (options.decode) {
      answer = tokenizer.decode(read_ids(value, tokenizer, place), options.skip_special);
    } else {
      if (!value.is_string()) throw InputError(place, "is not a JSON string");
      answer = tokenizer.encode(value.get_ref<const std::string&>(), !options.no_special);
    }
    std::cout << json_line(answer) << '\n';
  }
}

void print_ids(const std::vector<int32_t>& ids, const TokenizeOptions& options, const Tokenizer& tokenizer) {
  if (options.as_json) {
    json tokens = json::array();
    for (const int32_t id : ids) tokens.push_back(tokenizer.token(id));
    std::cout << json_line({{"ids", ids}, {"tokens", tokens}}) << '\n';
    return;
  }
  for (size_t k = 0; k < ids.size(); ++k) std::cout << (k > 0 ? " " : "") << ids[k];
  std::cout << '\n';
}

void run(const TokenizeOptions& options) {
  const int sources =
      !options.text.empty() + !options.file.empty() + !options.jsonl.empty() + !options.decode_ids.empty();
  if (sources > 1) throw UsageError("--text, --file, --jsonl and --decode IDS exclude each other");
  if (options.decode && options.decode_ids.empty() && options.jsonl.empty())
    throw UsageError("--decode needs ids", "give --decode 1,2,3 or --jsonl FILE");
  if (!options.decode) refuse_given(options.of_ids, "without --decode", "add it, or leave this out: it is for ids");
  if (options.decode) refuse_given(options.of_text, "with --decode", "leave it out: it is for text");
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(options.model);
  if (!options.jsonl.empty()) {
    run_lines(options, *tokenizer);
  } else if (options.decode) {
    const json list = parse_json("[" + options.decode_ids + "]", "--decode");
    const std::string text = tokenizer->decode(read_ids(list, *tokenizer, "--decode"), options.skip_special);
    std::cout << (options.as_json ? json_line({{"text", text}}) : for_stream(stdout, text)) << '\n';
  } else {
    const std::string text = options.file.empty() ? options.text : read_text_file(options.file, kMaxTextFile);
    const std::string place = options.file.empty() ? "--text" : options.file;
    const auto other = first_invalid_utf8(text) < text.size() ? mistaken_file(text) : std::nullopt;
    if (other) throw InputError(place, other->reason, other->remedy);
    require_utf8(text, place);
    print_ids(tokenizer->encode(text, !options.no_special), options, *tokenizer);
  }
}

}  // namespace

void add_tokenize_command(Command& nibble) {
  auto options = std::make_shared<TokenizeOptions>();
  Command command = nibble.subcommand("tokenize", "Text to token ids, or token ids to text");
  command.group(kCheckingTools);
  model_option(command, options->model, "model directory or tokenizer file").required();
  command.option("--text", options->text, "text to encode");
  command.option("--file", options->file, "file to encode");
  command.option("--jsonl", options->jsonl,
                 "one JSON string a line (with --decode: one array of ids); blank lines are passed over");
  options->of_text = {command.flag("--no-special", options->no_special, "add no BOS or other special tokens")};
  const Argument decode =
      command.option("--decode", options->decode_ids, "comma-separated ids to decode").value_optional("IDS");
  options->of_ids = {command.flag("--skip-special", options->skip_special, "leave special tokens out of decoded text")};
  command.flag("--json", options->as_json, "print one JSON object; lines of --jsonl are JSON without");
  command.footer("Example: nibble tokenize --model DIR --text 'Hello world' --json");
  command.run([options, decode] {
    options->decode = decode.given();
    run(*options);
  });
}

}  // namespace nibble::cli
