#pragma once
// Chat templates: a conversation as the one text that a model was, or will be, trained on.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/core/text/chat/conversation.h"
#include "nibble/core/text/tokenizers/tokenizer.h"

namespace nibble {

/// The text of the tokens that templates write, empty where the tokenizer has none.
struct TemplateTokens {
  std::string bos, eos;
};

/// Those of a tokenizer.
TemplateTokens template_tokens(const Tokenizer& tokenizer);

/// Turns conversations into text. Constant after it is made; safe to call from many threads.
class ChatTemplate {
 public:
  virtual ~ChatTemplate() = default;

  /// The conversation as text, special tokens written out (BOS too): encode it with add_special = false. With
  /// add_generation_prompt the text ends where the assistant's next answer begins. `answers` are the spans of the
  /// assistant messages that are trained, from the end of their generation prompt to the end of the end-of-turn mark;
  /// a model's own template has none with add_generation_prompt.
  /// Throws InputError, naming the message, for a conversation that the template has no form for.
  virtual RenderedChat render(const Conversation& conversation, bool add_generation_prompt = false) const = 0;

  /// What the template leaves out without a word, in order: a text that is the same without it, and was so when the
  /// message was the last one (thoughts that are taken out of earlier answers are shown in their time).
  virtual std::vector<HiddenPart> hidden_parts(const Conversation& conversation) const = 0;
};

/// What the template writes behind an answer to end it, such as "<|im_end|>"; empty where it writes nothing but white
/// space, or has no form for a question and an answer.
std::string end_of_turn(const ChatTemplate& chat_template);

/// A template that needs no file: `chatml`, `llama2`, `llama3`, `mistral`, `zephyr`, `gemma`, `phi3`, `vicuna`, `tulu`,
/// `openchat`, `alpaca`, `plain` (`llama-2`, `llama-3`, `qwen`, `phi-3`, `mixtral`, `gemma2` are other names of these).
/// Each is a row of data, see chat_template.cpp. Throws UsageError for another name, with the nearest one.
std::unique_ptr<ChatTemplate> builtin_chat_template(std::string_view name, const TemplateTokens& tokens);

/// Their names.
std::vector<std::string> builtin_chat_template_names();

/// Stanford Alpaca's prompt for an instruction and an optional input, up to where the answer begins. `system` replaces
/// its first sentences where it is not empty. (github.com/tatsu-lab/stanford_alpaca, "Data Release")
std::string alpaca_prompt(std::string_view instruction, std::string_view input = "", std::string_view system = "");

}  // namespace nibble
