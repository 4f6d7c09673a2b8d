#pragma once
// Every reader of foreign files as a function of the bytes of the file: what libFuzzer drives (driver/libfuzzer.cpp)
// and what replay_test.cpp feeds with the seeds. A target returns when the reader accepts the bytes or refuses them
// with one of nibble's errors; anything else it throws is a bug.

#include <cstdint>
#include <span>
#include <string_view>

namespace nibble::fuzz {

using Bytes = std::span<const uint8_t>;

void safetensors(Bytes bytes);       ///< SafetensorsFile, every byte of every tensor read
void index(Bytes bytes);             ///< model.safetensors.index.json beside two shards
void npy(Bytes bytes);               ///< read_npy
void manifest(Bytes bytes);          ///< manifest.json of a checkpoint
void state(Bytes bytes);             ///< state.json of a checkpoint whose hashes hold
void slices(Bytes bytes);            ///< a tensor file of a checkpoint whose hashes hold
void config(Bytes bytes);            ///< config.json, quantization_config in it
void adapter_config(Bytes bytes);    ///< adapter_config.json
void recipe(Bytes bytes);            ///< a recipe, and an override
void yaml(Bytes bytes);              ///< a YAML document, then as a recipe
void tokenizer_json(Bytes bytes);    ///< tokenizer.json, then encoding and decoding with it
void sentencepiece(Bytes bytes);     ///< tokenizer.model, then encoding and decoding with it
void roles(Bytes bytes);             ///< tokenizer_config.json
void jsonl(Bytes bytes);             ///< a .jsonl file as some format, with some built-in chat template
void text(Bytes bytes);              ///< a .txt file
void csv(Bytes bytes);               ///< a .csv file, read as jsonl
void packed(Bytes bytes);            ///< a .jsonl file in gzip or Zstandard
void parquet(Bytes bytes);           ///< a .parquet file, its first rows as jsonl
void arrow(Bytes bytes);             ///< an .arrow file, its first rows as jsonl
void gguf(Bytes bytes);              ///< GgufFile, every row of every tensor read
void chat_template(Bytes bytes);     ///< a Jinja template, run on one conversation
void trained_template(Bytes bytes);  ///< a Jinja template, and which of its text is trained
void template_request(Bytes bytes);  ///< a conversation as JSON, for a template and as it is
void vocab_and_merges(Bytes bytes);  ///< GPT-2's files: vocab.json, tokenizer_config.json, merges.txt, a line each

struct Target {
  std::string_view name;  ///< also the folder of its seeds
  void (*run)(Bytes);
};

inline constexpr Target kTargets[] = {
    {"safetensors", safetensors},
    {"index", index},
    {"npy", npy},
    {"manifest", manifest},
    {"state", state},
    {"slices", slices},
    {"config", config},
    {"adapter_config", adapter_config},
    {"recipe", recipe},
    {"yaml", yaml},
    {"tokenizer_json", tokenizer_json},
    {"sentencepiece", sentencepiece},
    {"roles", roles},
    {"jsonl", jsonl},
    {"text", text},
    {"csv", csv},
    {"packed", packed},
    {"parquet", parquet},
    {"arrow", arrow},
    {"gguf", gguf},
    {"chat_template", chat_template},
    {"trained_template", trained_template},
    {"template_request", template_request},
    {"vocab_and_merges", vocab_and_merges},
};

}  // namespace nibble::fuzz
