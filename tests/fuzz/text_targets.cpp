#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/data/format.h"
#include "nibble/core/text/json_fields.h"
#include "nibble/core/text/json_tokenizer.h"
#include "nibble/core/text/sentencepiece_tokenizer.h"
#include "nibble/core/text/token_roles.h"
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

void read_records(const std::string& path) {
  const Encoder encoder = test::byte_encoder();
  DataOptions options;
  RecordReader reader(path);
  RawRecord record;
  int left = 8;  // the first ones; the rest are alike
  while (left-- > 0 && reader.next(record)) {
    if (reader.is_text()) {
      encode_record(render_document(record.text), encoder);
      continue;
    }
    for (const DataFormat format :
         {DataFormat::alpaca, DataFormat::chat, DataFormat::completion, DataFormat::text, DataFormat::tokens}) {
      try {
        encode_record(render_record(path, record, format, options, encoder), encoder);
      } catch (const Error&) {
      }
    }
    try {
      detect_format(path, record, options);
    } catch (const Error&) {
    }
    for (const std::string& name : builtin_chat_template_names()) {
      Encoder with_template = encoder;
      const std::shared_ptr<ChatTemplate> chat = builtin_chat_template(name, {"<s>", "</s>"});
      with_template.render_chat = [chat](const Conversation& conversation) { return chat->render(conversation); };
      try {
        encode_record(render_record(path, record, DataFormat::chat, options, with_template), with_template);
      } catch (const Error&) {
      }
    }
  }
}

void read_data_file(const char* name, Bytes bytes) {
  static const MemoryDirectory directory;
  directory.write(name, as_text(bytes));
  try {
    read_records((directory / name).string());
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
  const std::string_view all = as_text(bytes);
  const size_t first = std::min(all.find('\n'), all.size());
  const size_t second = std::min(all.find('\n', first + 1), all.size());
  directory.write("vocab.json", all.substr(0, first));
  directory.write("tokenizer_config.json", first < second ? all.substr(first + 1, second - first - 1) : "{}");
  directory.write("merges.txt", second < all.size() ? all.substr(second + 1) : "");
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
  static const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer_json(
      parse_json(
          R"({"model":{"type":"BPE","vocab":{"a":0,"<s>":1,"</s>":2},"merges":[]},)"
          R"("added_tokens":[{"id":1,"content":"<s>","special":true},{"id":2,"content":"</s>","special":true}]})",
          "tokenizer.json"),
      "tokenizer.json");
  directory.write("tokenizer_config.json", as_text(bytes));
  try {
    read_token_roles(directory.path(), *tokenizer);
  } catch (const Error&) {
  }
}

void jsonl(Bytes bytes) { read_data_file("f.jsonl", bytes); }
void text(Bytes bytes) { read_data_file("f.txt", bytes); }

}  // namespace nibble::fuzz
