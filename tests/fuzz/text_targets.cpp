#include <map>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/data/records/format.h"
#include "nibble/core/text/tokenizers/json/json_fields.h"
#include "nibble/core/text/tokenizers/json/json_tokenizer.h"
#include "nibble/core/text/tokenizers/sentencepiece/sentencepiece_tokenizer.h"
#include "nibble/core/text/tokenizers/token_roles.h"
#include "nibble/tests/core/data/byte_encoder.h"
#include "nibble/tests/fuzz/memory_files.h"

namespace nibble::fuzz {

namespace {

constexpr std::string_view kText = " Hello, wörld!\n 12345 <s>don't</s>  日本\t";

void use(const Tokenizer& tokenizer) {
  for (const TokenSpan& token : tokenizer.encode_with_offsets(kText)) {
    if (token.begin < 0 || token.end < token.begin || token.end > static_cast<int64_t>(kText.size())) std::abort();
  }
  std::vector<int32_t> ids = tokenizer.encode(kText, false);
  for (int32_t id = 0; id < std::min(tokenizer.vocab_size(), 20); ++id) ids.push_back(id);
  try {
    tokenizer.decode(ids, true);
  } catch (const Error&) {
  }
  StreamDecoder decoder(tokenizer);
  for (const int32_t id : ids) decoder.push(id);
  decoder.finish();
}

// The tests' small tokenizer, with each of the built-in chat templates.
std::vector<Encoder> encoders_with_templates() {
  std::vector<Encoder> encoders;
  for (const std::string& name : builtin_chat_template_names()) {
    Encoder& encoder = encoders.emplace_back(test::byte_encoder());
    const std::shared_ptr<ChatTemplate> chat = builtin_chat_template(name, {"<s>", "</s>"});
    encoder.render_chat = [chat](const Conversation& conversation) { return chat->render(conversation); };
  }
  return encoders;
}

// As one of the formats or as the one that the record has, with one chat template, which the recipe may name or not:
// `choice` says which. The program, too, does one of these.
void read_records(const std::string& path, size_t choice) {
  static const Encoder plain = test::byte_encoder();
  static const std::vector<Encoder> with_templates = encoders_with_templates();
  static constexpr DataFormat kFormats[] = {DataFormat::alpaca,    DataFormat::chat,     DataFormat::completion,
                                            DataFormat::text,      DataFormat::tokens,   DataFormat::automatic,
                                            DataFormat::automatic, DataFormat::automatic};
  const auto draw = [&choice](size_t count) {
    const size_t drawn = choice % count;
    choice /= count;
    return drawn;
  };
  const Encoder& with_template = with_templates[draw(with_templates.size())];
  const DataFormat asked = kFormats[draw(std::size(kFormats))];
  DataOptions options;
  if (draw(2) == 1) options.chat_template = "chatml";
  RecordReader reader(path);
  RawRecord record;
  int left = 8;  // the first ones; the rest are alike
  while (left-- > 0 && reader.next(record)) {
    if (reader.is_text()) {
      encode_record(render_document(record.text), plain);
      continue;
    }
    try {
      const DataFormat format = asked == DataFormat::automatic ? detect_format(path, record, options) : asked;
      encode_record(render_record(path, record, format, options, with_template), with_template);
    } catch (const Error&) {
    }
  }
}

// Every byte of the file has a part in the choice, so that one more blank makes another.
size_t choice_of(Bytes bytes) {
  size_t sum = bytes.size();
  for (const uint8_t byte : bytes) sum = sum * 31 + byte;
  return sum;
}

// As a file of this name.
void read_data_file(const char* name, Bytes bytes) {
  static const MemoryDirectory directory;
  static std::map<std::string_view, MemoryFile> files;
  MemoryFile& file = files.try_emplace(name, directory, name).first->second;
  file.write(as_text(bytes));
  try {
    read_records(file.path(), choice_of(bytes));
  } catch (const Error&) {
  }
}

}  // namespace

void tokenizer_json(Bytes bytes) {
  try {
    use(*open_tokenizer_json(parse_json(as_text(bytes), "tokenizer.json", kTokenizerLimits), "tokenizer.json"));
  } catch (const Error&) {
  }
}

// The first line is vocab.json, the second tokenizer_config.json, the rest merges.txt.
void vocab_and_merges(Bytes bytes) {
  static const MemoryDirectory directory;
  static MemoryFile vocab(directory, "vocab.json"), settings(directory, "tokenizer_config.json"),
      merges(directory, "merges.txt");
  const std::string_view all = as_text(bytes);
  const size_t first = std::min(all.find('\n'), all.size());
  const size_t second = std::min(all.find('\n', first + 1), all.size());
  vocab.write(all.substr(0, first));
  settings.write(first < second ? all.substr(first + 1, second - first - 1) : "{}");
  merges.write(second < all.size() ? all.substr(second + 1) : "");
  try {
    use(*open_tokenizer_json(describe_vocab_and_merges(directory.path()), "vocab.json"));
  } catch (const Error&) {
  }
}

void sentencepiece(Bytes bytes) {
  try {
    use(*open_sentencepiece(std::string(as_text(bytes)), "tokenizer.model"));
  } catch (const Error&) {
  }
}

void roles(Bytes bytes) {
  static const MemoryDirectory directory;
  static MemoryFile foreign(directory, "tokenizer_config.json");
  static const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer_json(
      parse_json(
          R"({"model":{"type":"BPE","vocab":{"a":0,"<s>":1,"</s>":2},"merges":[]},)"
          R"("added_tokens":[{"id":1,"content":"<s>","special":true},{"id":2,"content":"</s>","special":true}]})",
          "tokenizer.json"),
      "tokenizer.json");
  foreign.write(as_text(bytes));
  try {
    read_token_roles(directory.path(), *tokenizer);
  } catch (const Error&) {
  }
}

void jsonl(Bytes bytes) { read_data_file("f.jsonl", bytes); }
void text(Bytes bytes) { read_data_file("f.txt", bytes); }
void csv(Bytes bytes) { read_data_file("f.csv", bytes); }
void packed(Bytes bytes) { read_data_file("f.jsonl.gz", bytes); }
void parquet(Bytes bytes) { read_data_file("f.parquet", bytes); }
void arrow(Bytes bytes) { read_data_file("f.arrow", bytes); }

}  // namespace nibble::fuzz
