#include "nibble/core/text/chat/chat_template.h"

#include <algorithm>
#include <array>
#include <utility>

#include "nibble/core/base/error.h"
#include "nibble/core/formatting/joined.h"
#include "nibble/core/text/chat/builtin_template.h"
#include "nibble/core/text/matching/nearest.h"

namespace nibble {

namespace {

// What stands before and after the content of a message. "{bos}" and "{eos}" are the tokenizer's tokens.
struct Turn {
  std::string_view before, after;
};

enum class SystemMessage : uint8_t {
  own_turn,      // a turn like the others
  in_first_user  // put in front of the first user message, in `system`'s form
};

// A template that differs from another in its strings only. The assistant's `before` is the generation prompt; `after`
// is trained with the answer, `between` follows it untrained. Sources: the chat templates that the models' authors
// published with them.
struct TemplateForm {
  std::string_view name;
  std::string_view start;  // of the whole text
  Turn system, user, assistant, tool;
  std::string_view between;       // after an assistant turn
  std::string_view answer_start;  // trained, in front of the answer, not in the prompt
  SystemMessage system_message = SystemMessage::own_turn;
  bool alternates = false;             // user and assistant must take turns
  bool trims = false;                  // white space around contents is taken away
  std::string_view first_user_before;  // instead of user.before, where there is no system message
  bool has_tokens = false;             // the marks in <> are tokens of the model it is from
};

constexpr std::string_view kAlpacaStart =
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.";
constexpr std::string_view kAlpacaStartWithInput =
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.";

// FastChat's vicuna_v1.1.
constexpr std::string_view kVicunaStart =
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, "
    "and polite answers to the user's questions.";

constexpr std::array kForms = {
    TemplateForm{.name = "chatml",
                 .start = "",
                 .system = {"<|im_start|>system\n", "<|im_end|>\n"},
                 .user = {"<|im_start|>user\n", "<|im_end|>\n"},
                 .assistant = {"<|im_start|>assistant\n", "<|im_end|>"},
                 .tool = {"<|im_start|>tool\n", "<|im_end|>\n"},
                 .between = "\n",
                 .has_tokens = true},
    TemplateForm{.name = "llama2",
                 .start = "",
                 .system = {"<<SYS>>\n", "\n<</SYS>>\n\n"},
                 .user = {"{bos}[INST] ", " [/INST]"},
                 .assistant = {"", " {eos}"},
                 .answer_start = " ",
                 .system_message = SystemMessage::in_first_user,
                 .alternates = true,
                 .trims = true},
    TemplateForm{.name = "llama3",
                 .start = "{bos}",
                 .system = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
                 .user = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
                 .assistant = {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"},
                 .tool = {"<|start_header_id|>ipython<|end_header_id|>\n\n", "<|eot_id|>"},
                 .trims = true,
                 .has_tokens = true},
    TemplateForm{.name = "mistral",
                 .start = "{bos}",
                 .system = {"", "\n\n"},
                 .user = {"[INST] ", " [/INST]"},
                 .assistant = {"", "{eos}"},
                 .answer_start = " ",
                 .system_message = SystemMessage::in_first_user,
                 .alternates = true},
    TemplateForm{.name = "zephyr",
                 .start = "",
                 .system = {"<|system|>\n", "{eos}\n"},
                 .user = {"<|user|>\n", "{eos}\n"},
                 .assistant = {"<|assistant|>\n", "{eos}"},
                 .between = "\n"},
    TemplateForm{.name = "gemma",
                 .start = "{bos}",
                 .system = {"", "\n\n"},
                 .user = {"<start_of_turn>user\n", "<end_of_turn>\n"},
                 .assistant = {"<start_of_turn>model\n", "<end_of_turn>"},
                 .between = "\n",
                 .system_message = SystemMessage::in_first_user,
                 .alternates = true,
                 .trims = true,
                 .has_tokens = true},
    TemplateForm{.name = "alpaca",
                 .start = "{bos}",
                 .system = {"", "\n\n"},
                 .user = {"### Instruction:\n", "\n\n"},
                 .assistant = {"### Response:\n", "{eos}"},
                 .between = "\n\n",
                 .first_user_before = "{alpaca}\n\n### Instruction:\n"},
    TemplateForm{.name = "phi3",
                 .start = "",
                 .system = {"<|system|>\n", "<|end|>\n"},
                 .user = {"<|user|>\n", "<|end|>\n"},
                 .assistant = {"<|assistant|>\n", "<|end|>"},
                 .between = "\n",
                 .has_tokens = true},
    TemplateForm{.name = "vicuna",
                 .start = "{bos}",
                 .system = {"", " "},
                 .user = {"USER: ", " "},
                 .assistant = {"ASSISTANT:", "{eos}"},
                 .answer_start = " ",
                 .alternates = true,
                 .first_user_before = "{vicuna} USER: "},
    TemplateForm{.name = "tulu",
                 .start = "",
                 .system = {"<|system|>\n", "\n"},
                 .user = {"<|user|>\n", "\n"},
                 .assistant = {"<|assistant|>\n", "{eos}"},
                 .between = "\n"},
    TemplateForm{.name = "openchat",
                 .start = "{bos}",
                 .system = {"GPT4 Correct System: ", "<|end_of_turn|>"},
                 .user = {"GPT4 Correct User: ", "<|end_of_turn|>"},
                 .assistant = {"GPT4 Correct Assistant:", "<|end_of_turn|>"},
                 .answer_start = " ",
                 .has_tokens = true},
    TemplateForm{.name = "plain",
                 .start = "{bos}",
                 .system = {"", "\n"},
                 .user = {"", "\n"},
                 .assistant = {"", "{eos}"},
                 .between = "\n"},
};

constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kOtherNames = {{{"llama-2", "llama2"},
                                                                                       {"llama-3", "llama3"},
                                                                                       {"qwen", "chatml"},
                                                                                       {"phi-3", "phi3"},
                                                                                       {"mixtral", "mistral"},
                                                                                       {"gemma2", "gemma"}}};

std::string trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\n\r\f\v";
  const size_t begin = text.find_first_not_of(kBlank);
  return begin == std::string_view::npos ? ""
                                         : std::string(text.substr(begin, text.find_last_not_of(kBlank) - begin + 1));
}

// A form's strings as Jinja that prints them.
std::string printed(std::string_view form) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kNames = {
      {{"{bos}", "bos_token"}, {"{eos}", "eos_token"}, {"{alpaca}", ""}, {"{vicuna}", ""}}};
  std::string result, literal;
  const auto end_literal = [&] {
    if (!literal.empty()) result += "{{- '" + std::exchange(literal, "") + "' -}}";
  };
  while (!form.empty()) {
    const auto name = std::ranges::find_if(kNames, [&](const auto& n) { return form.starts_with(n.first); });
    if (name != kNames.end() && !name->second.empty()) {
      end_literal();
      result.append("{{- ").append(name->second).append(" -}}");
    } else if (name != kNames.end()) {
      for (const char c : name->first == "{alpaca}" ? kAlpacaStart : kVicunaStart) {
        literal += c == '\'' ? std::string("\\'") : std::string(1, c);
      }
    } else {
      literal += form.front() == '\n' ? "\\n" : std::string(1, form.front());
    }
    form.remove_prefix(name != kNames.end() ? name->first.size() : 1);
  }
  end_literal();
  return result;
}

// What BuiltinTemplate does, as Jinja; the tests compare the two.
std::string jinja_source(const TemplateForm& form) {
  const auto refuse = [](const std::string& reason) { return "{{- raise_exception('" + reason + "') -}}"; };
  const std::string content = form.trims ? "message['content'] | trim" : "message['content']";
  std::string text = printed(form.start);
  text += "{%- set state = namespace(last='', system='') -%}\n";
  text +=
      "{%- if tools or documents -%}" + refuse("this template has no form for tools and documents") + "{%- endif -%}\n";
  text += "{%- for message in messages -%}\n{%- if message['tool_calls'] or message['reasoning_content'] -%}" +
          refuse("this template has no form for tool calls and reasoning") + "{%- endif -%}\n";
  text += "{%- if message['role'] == 'assistant' -%}\n";
  if (form.alternates) {
    text +=
        "{%- if state.last != 'user' -%}" + refuse("a user message is wanted before each answer") + "{%- endif -%}\n";
  }
  text += printed(form.assistant.before) + "{%- generation -%}" + printed(form.answer_start) + "{{- " + content +
          " -}}" + printed(form.assistant.after) + "{%- endgeneration -%}" + printed(form.between) + "\n";
  text += "{%- elif message['role'] == 'system' -%}\n";
  if (form.alternates) {
    text += "{%- if not loop.first -%}" + refuse("a system message is taken at the start only") + "{%- endif -%}\n";
  }
  if (form.system_message == SystemMessage::in_first_user) {
    text += "{%- set state.system -%}" + printed(form.system.before) + "{{- " + content + " -}}" +
            printed(form.system.after) + "{%- endset -%}\n";
  } else {
    text += printed(form.system.before) + "{{- " + content + " -}}" + printed(form.system.after) + "\n";
  }
  text += "{%- elif message['role'] == 'user' -%}\n";
  if (form.alternates) {
    text +=
        "{%- if state.last == 'user' -%}" + refuse("an answer is wanted between two user messages") + "{%- endif -%}\n";
  }
  if (form.first_user_before.empty()) {
    text += printed(form.user.before);
  } else {
    text += "{%- if loop.first -%}" + printed(form.first_user_before) + "{%- else -%}" + printed(form.user.before) +
            "{%- endif -%}";
  }
  if (form.system_message == SystemMessage::in_first_user) {
    text += "{{- state.system -}}{%- set state.system = '' -%}";
  }
  text += "{{- " + content + " -}}" + printed(form.user.after) + "\n";
  if (!form.tool.before.empty()) {
    text += "{%- elif message['role'] == 'tool' -%}\n" + printed(form.tool.before) + "{{- " + content + " -}}" +
            printed(form.tool.after) + "\n";
  }
  text += "{%- else -%}\n" + refuse("this template has no form for the role of a message") + "{%- endif -%}\n";
  const bool waits = form.system_message == SystemMessage::in_first_user;
  const std::string set_last = "{%- set state.last = message['role'] -%}";
  text += waits ? "{%- if message['role'] != 'system' -%}" + set_last + "{%- endif -%}\n" : set_last + "\n";
  text += "{%- endfor -%}\n";
  if (waits) {
    text += "{%- if state.system -%}" + refuse("a user message is wanted after the system message") + "{%- endif -%}\n";
  }
  return text + "{%- if add_generation_prompt -%}" + printed(form.assistant.before) + "{%- endif -%}\n";
}

class BuiltinTemplate final : public ChatTemplate {
 public:
  BuiltinTemplate(const TemplateForm& form, TemplateTokens tokens) : form_(form), tokens_(std::move(tokens)) {}

  // No form shows one: render() refuses them.
  std::vector<HiddenPart> hidden_parts(const Conversation& conversation) const override {
    std::vector<HiddenPart> hidden;
    if (holds_any(conversation.tools)) hidden.push_back({HiddenPart::Kind::tools, 0});
    if (holds_any(conversation.documents)) hidden.push_back({HiddenPart::Kind::documents, 0});
    for (size_t k = 0; k < conversation.messages.size(); ++k) {
      if (!conversation.messages[k].tool_calls.empty()) hidden.push_back({HiddenPart::Kind::tool_calls, k});
      if (!conversation.messages[k].reasoning.empty()) hidden.push_back({HiddenPart::Kind::reasoning, k});
    }
    return hidden;
  }

  RenderedChat render(const Conversation& conversation, bool add_generation_prompt) const override {
    if (holds_any(conversation.tools)) refuse("tools", "has no form for tools");
    if (holds_any(conversation.documents)) refuse("documents", "has no form for documents");
    RenderedChat chat{filled(form_.start), {}};
    std::string system;  // waits for the first user message
    std::string_view last;
    for (size_t k = 0; k < conversation.messages.size(); ++k) {
      const ChatMessage& message = conversation.messages[k];
      check(message, k, last);
      const std::string content = form_.trims ? trimmed(message.content) : message.content;
      if (message.role == "assistant") {
        append_answer(content, message.train, chat);
      } else if (message.role == "system" && form_.system_message == SystemMessage::in_first_user) {
        system = filled(form_.system.before) + content + filled(form_.system.after);
        continue;  // roles alternate without it
      } else {
        const Turn& turn = message.role == "system" ? form_.system : message.role == "user" ? form_.user : form_.tool;
        const bool opens = message.role == "user" && k == 0 && !form_.first_user_before.empty();
        chat.text += filled(opens ? form_.first_user_before : turn.before);
        if (message.role == "user") chat.text += std::exchange(system, "");
        chat.text += content + filled(turn.after);
      }
      last = message.role;
    }
    if (!system.empty()) refuse("messages[0]", "needs a user message after the system message");
    if (add_generation_prompt) chat.text += filled(form_.assistant.before);
    return chat;
  }

 private:
  void append_answer(const std::string& content, bool train, RenderedChat& chat) const {
    chat.text += filled(form_.assistant.before);
    const size_t begin = chat.text.size();
    chat.text += std::string(form_.answer_start) + content + filled(form_.assistant.after);
    if (train) chat.answers.push_back({begin, chat.text.size()});
    chat.text += form_.between;
  }

  void check(const ChatMessage& message, size_t k, std::string_view last) const {
    const std::string place = "messages[" + std::to_string(k) + "]";
    if (!message.tool_calls.empty()) refuse(place, "has no form for tool calls");
    if (!message.reasoning.empty()) refuse(place, "has no form for reasoning");
    const bool tool = message.role == "tool" && !form_.tool.before.empty();
    if (message.role != "system" && message.role != "user" && message.role != "assistant" && !tool)
      refuse(place, "has no form for the role '" + message.role + "' (roles are system, user, assistant)");
    if (!form_.alternates) return;
    if (message.role == "system" && k != 0) refuse(place, "takes a system message at the start only");
    if (message.role == "user" && last == "user") refuse(place, "wants an answer between two user messages");
    if (message.role == "assistant" && last != "user") refuse(place, "wants a user message before each answer");
  }

  [[noreturn]] void refuse(const std::string& place, const std::string& reason) const {
    throw InputError(place, "the template '" + std::string(form_.name) + "' " + reason,
                     "choose another template or change the conversation");
  }

  std::string filled(std::string_view form) const {
    std::string text;
    for (size_t position = 0; position < form.size();) {
      const auto take = [&](std::string_view name, std::string_view value) {
        if (!form.substr(position).starts_with(name)) return false;
        text += value;
        position += name.size();
        return true;
      };
      if (!take("{bos}", tokens_.bos) && !take("{eos}", tokens_.eos) && !take("{alpaca}", kAlpacaStart) &&
          !take("{vicuna}", kVicunaStart))
        text += form[position++];
    }
    return text;
  }

  const TemplateForm& form_;
  TemplateTokens tokens_;
};

}  // namespace

TemplateTokens template_tokens(const Tokenizer& tokenizer) {
  const auto text = [&](std::optional<int32_t> id) { return id ? tokenizer.token(*id) : std::string(); };
  return {text(tokenizer.bos_id()), text(tokenizer.eos_id())};
}

std::string end_of_turn(const ChatTemplate& chat_template) {
  // Words that stand in no text: their first and last characters are of Unicode's private use.
  const std::string words = "\uE0A3answer\uE0A7";
  Conversation conversation;
  conversation.messages.push_back({.role = "user", .content = "question"});
  conversation.messages.push_back({.role = "assistant", .content = words});
  try {
    const std::string text = chat_template.render(conversation).text;
    const size_t at = text.rfind(words);
    return at == std::string::npos ? "" : trimmed(text.substr(at + words.size()));
  } catch (const InputError&) {
    return "";
  }
}

namespace {

const TemplateForm& form_of(std::string_view name) {
  const auto* alias =
      std::find_if(kOtherNames.begin(), kOtherNames.end(), [&](const auto& a) { return a.first == name; });
  const std::string_view wanted = alias == kOtherNames.end() ? name : alias->second;
  const auto form = std::find_if(kForms.begin(), kForms.end(), [&](const TemplateForm& f) { return f.name == wanted; });
  if (form != kForms.end()) return *form;
  const std::string meant = nearest(std::string(name), builtin_chat_template_names());
  throw UsageError(
      "there is no chat template '" + std::string(name) + "'",
      meant.empty() ? "the built-in ones are " + joined(builtin_chat_template_names()) : "did you mean " + meant + "?");
}

}  // namespace

std::unique_ptr<ChatTemplate> builtin_chat_template(std::string_view name, const TemplateTokens& tokens) {
  return std::make_unique<BuiltinTemplate>(form_of(name), tokens);
}

std::string builtin_chat_template_source(std::string_view name) { return jinja_source(form_of(name)); }

std::vector<std::string> builtin_chat_template_marks(std::string_view name) {
  const TemplateForm& form = form_of(name);
  std::vector<std::string> marks;
  for (const Turn& turn : {form.system, form.user, form.assistant}) {
    for (std::string_view text : {turn.before, turn.after}) {
      for (size_t begin; form.has_tokens && (begin = text.find('<')) != std::string_view::npos;) {
        const size_t end = text.find('>', begin) + 1;
        const std::string mark(text.substr(begin, end - begin));
        if (std::ranges::find(marks, mark) == marks.end()) marks.push_back(mark);
        text.remove_prefix(end);
      }
    }
  }
  return marks;
}

std::vector<std::string> builtin_chat_template_names() {
  std::vector<std::string> names;
  for (const TemplateForm& form : kForms) names.emplace_back(form.name);
  return names;
}

std::string alpaca_prompt(std::string_view instruction, std::string_view input, std::string_view system) {
  std::string text(!system.empty() ? system : input.empty() ? kAlpacaStart : kAlpacaStartWithInput);
  text.append("\n\n### Instruction:\n").append(instruction);
  if (!input.empty()) text.append("\n\n### Input:\n").append(input);
  return text.append("\n\n### Response:\n");
}

}  // namespace nibble
