#include "nibble/core/data/records/hidden_parts.h"

#include "nibble/core/base/error.h"

namespace nibble {

namespace {

std::string name_of(const HiddenPart& part, const Conversation& conversation) {
  const bool of_all = part.kind == HiddenPart::Kind::tools || part.kind == HiddenPart::Kind::documents;
  const ChatMessage message = of_all ? ChatMessage() : conversation.messages[part.message];
  const std::string place = message.place.empty() ? "messages[" + std::to_string(part.message) + "]" : message.place;
  switch (part.kind) {
    case HiddenPart::Kind::tools:
      return "a list of tools";
    case HiddenPart::Kind::documents:
      return "documents";
    case HiddenPart::Kind::tool_calls:
      return "tool calls in " + place;
    case HiddenPart::Kind::reasoning:
      return "reasoning in " + place;
    default:
      return place + " of role \"" + message.role + "\"";
  }
}

void refuse_hidden(const JsonRecord& record, const DataOptions& options, const std::string& part,
                   const std::string& text) {
  if (options.hidden_parts == HiddenParts::drop) return;
  record.fail("has " + part + ", which " + text + " does not show",
              "choose a data.template (--template) that does, or leave such parts out: data.hidden_parts=drop "
              "(--hidden-parts drop)");
}

}  // namespace

bool take_hidden_parts(const JsonRecord& record, const DataOptions& options, const Encoder& encoder,
                       Conversation& conversation) {
  if (!encoder.hidden_parts) return false;
  std::vector<HiddenPart> hidden;
  try {
    hidden = encoder.hidden_parts(conversation);
  } catch (const InputError& error) {
    record.fail(error.what());
  }
  if (!hidden.empty()) refuse_hidden(record, options, name_of(hidden.front(), conversation), "the chat template");
  for (const HiddenPart& part : hidden) {  // built-in templates would refuse them
    if (part.kind == HiddenPart::Kind::tools) conversation.tools.clear();
    if (part.kind == HiddenPart::Kind::documents) conversation.documents.clear();
    if (part.kind == HiddenPart::Kind::tool_calls) conversation.messages[part.message].tool_calls.clear();
    if (part.kind == HiddenPart::Kind::reasoning) conversation.messages[part.message].reasoning.clear();
  }
  return !hidden.empty();
}

bool has_parts_without_place(const JsonRecord& record, const DataOptions& options, const Conversation& conversation,
                             const std::string& text) {
  std::vector<std::string> hidden;
  if (holds_any(conversation.tools)) hidden.push_back(name_of({HiddenPart::Kind::tools, 0}, conversation));
  if (holds_any(conversation.documents)) hidden.push_back(name_of({HiddenPart::Kind::documents, 0}, conversation));
  for (size_t k = 0; k < conversation.messages.size(); ++k) {
    const ChatMessage& message = conversation.messages[k];
    if (message.role == "system") hidden.emplace_back("a system prompt");
    if (!message.reasoning.empty()) hidden.push_back(name_of({HiddenPart::Kind::reasoning, k}, conversation));
  }
  if (!hidden.empty()) refuse_hidden(record, options, hidden.front(), text);
  return !hidden.empty();
}

void fail_without_template(const JsonRecord& record, const Encoder& encoder) {
  encoder.encode("", [](std::span<const TokenSpan>) {});  // without a tokenizer a template would not help
  record.fail("is a conversation, but the model has no chat template",
              "set data.template (--template), for example to chatml, or to a .jinja file");
}

}  // namespace nibble
