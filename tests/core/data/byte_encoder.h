#pragma once
// A tokenizer that can be checked by eye: a token is a byte, its id the byte's value.

#include <string>

#include "nibble/core/data/dataset.h"
#include "nibble/core/data/encoder.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble::test {

inline constexpr int32_t kBos = 256, kEos = 257;

/// BOS in front where with_bos, EOS 257; the text "^" is BOS and "$" is EOS, as special tokens are.
inline Encoder byte_encoder(bool with_bos = true) {
  Encoder encoder;
  encoder.encode = [](std::string_view text, const TakeTokens& take) {
    std::vector<TokenSpan> tokens;
    for (size_t i = 0; i < text.size(); ++i) {
      const int32_t id = text[i] == '^' ? kBos : text[i] == '$' ? kEos : static_cast<unsigned char>(text[i]);
      tokens.push_back({id, static_cast<int64_t>(i), static_cast<int64_t>(i) + 1});
    }
    take(tokens);
  };
  encoder.token_texts = [](std::span<const int32_t> ids) {
    std::vector<std::string> texts;
    for (const int32_t id : ids) {
      texts.push_back(id == kBos ? "^" : id == kEos ? "$" : std::string(1, static_cast<char>(id)));
    }
    return texts;
  };
  // user: "[...]", assistant: "...!", system: "{...}", tool: "(...)"; the end mark "!" belongs to the answer.
  encoder.render_chat = [](const Conversation& chat) {
    RenderedChat rendered;
    for (const ChatMessage& message : chat.messages) {
      if (message.role == "system") rendered.text += "{" + message.content + "}";
      if (message.role == "user") rendered.text += "[" + message.content + "]";
      if (message.role == "tool") rendered.text += "(" + message.content + ")";
      if (message.role != "assistant") continue;
      const size_t begin = rendered.text.size();
      rendered.text += message.content + message.tool_calls + "!";
      if (message.train) rendered.answers.push_back({begin, rendered.text.size()});
      rendered.text += "\n";
    }
    return rendered;
  };
  encoder.is_special = [](int32_t id) { return id >= kBos; };
  if (with_bos) encoder.prefix = {kBos};
  encoder.eos = kEos;
  encoder.vocab_size = 258;
  return encoder;
}

/// Ids as text, BOS "^" and EOS "$"; with `masked` untrained tokens are "_".
inline std::string shown(const Sample& sample, bool masked = false) {
  std::string text;
  for (size_t i = 0; i < sample.ids.size(); ++i) {
    const int32_t id = sample.ids[i];
    const char c = id == kBos ? '^' : id == kEos ? '$' : static_cast<char>(id);
    text += masked && sample.labels[i] == kIgnoreLabel ? '_' : c;
  }
  return text;
}

/// Data files in a folder of their own.
class Files {
 public:
  std::string write(const std::string& name, const std::string& bytes) {
    std::filesystem::create_directories((folder_ / name).parent_path());
    write_bytes(folder_ / name, bytes);
    return path(name);
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

 private:
  TemporaryDirectory folder_;
};

inline Dataset load(const std::string& path, const DataOptions& options = {}, const Encoder& encoder = byte_encoder()) {
  return Dataset::load({{path, 1.0}}, options, encoder);
}

}  // namespace nibble::test
