#pragma once
// A small model with random weights, a tokenizer of bytes and text, all made here: for runs on several ranks.

#include "nibble/recipes/models/init_model.h"
#include "nibble/tests/parallel/layouts.h"

namespace nibble::test {

/// A tokenizer.json whose tokens are the 256 bytes, in GPT-2's letters for them, and an end.
inline std::string byte_tokenizer() {
  json vocabulary;
  int further = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool shown = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    const int letter = shown ? byte : further++;
    std::string utf8(1, static_cast<char>(letter));
    if (letter > 127) utf8 = {static_cast<char>(0xC0 | letter >> 6), static_cast<char>(0x80 | (letter & 0x3F))};
    vocabulary[utf8] = byte;
  }
  vocabulary["<|end|>"] = 256;
  const json end = {{"id", 256},       {"content", "<|end|>"}, {"special", true},    {"single_word", false},
                    {"lstrip", false}, {"rstrip", false},      {"normalized", false}};
  return json{{"version", "1.0"},
              {"added_tokens", {end}},
              {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
              {"decoder", {{"type", "ByteLevel"}}},
              {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}}}}
      .dump();
}

/// Four layers of four heads, with biases; a head of its own, or a tied one.
class OwnModel : public Layouts {
 protected:
  void SetUp() override { base_ = make_model("model", false); }

  fs::path make_model(const std::string& name, bool tied) const {
    const json config = {{"architectures", {"Qwen3ForCausalLM"}},
                         {"model_type", "qwen3"},
                         {"hidden_size", 32},
                         {"num_hidden_layers", 4},
                         {"num_attention_heads", 4},
                         {"num_key_value_heads", 4},
                         {"head_dim", 16},
                         {"intermediate_size", 64},
                         {"vocab_size", 257},
                         {"max_position_embeddings", 64},
                         {"attention_bias", true},
                         {"tie_word_embeddings", tied},
                         {"eos_token_id", 256},
                         {"initializer_range", 0.1},
                         {"rms_norm_eps", 1e-6},
                         {"dtype", "float32"}};
    const fs::path file = directory_ / (name + ".json"), model = directory_ / name;
    write_bytes(file, config.dump());
    init_model({.config = file.string(), .out = model.string(), .seed = 3, .dtype = "f32"});
    write_bytes(model / "tokenizer.json", byte_tokenizer());
    write_bytes(model / "tokenizer_config.json", json{{"eos_token", "<|end|>"}}.dump());
    return model;
  }

  /// `count` texts of 12 to 27 letters.
  fs::path make_texts(int count) const {
    std::string lines;
    for (int i = 0; i < count; ++i) {
      std::string text;
      for (int k = 0; k < 12 + i * 7 % 16; ++k) text += static_cast<char>('a' + (i * 5 + k * k) % 26);
      lines += json{{"text", text}}.dump() + "\n";
    }
    const fs::path file = directory_ / ("texts" + std::to_string(count) + ".jsonl");
    write_bytes(file, lines);
    return file;
  }

  json own_recipe(const fs::path& model, int texts) const {
    return {{"model", {{"path", model.string()}, {"compute_dtype", "f32"}}},
            {"data", {{"train", make_texts(texts).string()}, {"format", "text"}, {"max_length", 32}, {"pack", false}}},
            {"train",
             {{"steps", 3},
              {"accumulate", 4},
              {"samples", 0},
              {"seed", 11},
              {"max_grad_norm", 0.5},
              {"gradient_sum", "tree"},
              {"gradient_checkpointing", "none"}}},
            {"optimizer", {{"lr", 2e-3}, {"weight_decay", 0.01}}}};
  }
};

}  // namespace nibble::test
