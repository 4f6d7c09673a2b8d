#include "nibble/core/text/chat/template_request.h"

#include <algorithm>
#include <chrono>

#include "nibble/core/base/error.h"
#include "nibble/core/formatting/joined.h"
#include "nibble/core/text/chat/jinja/values/json_value.h"
#include "nibble/core/text/chat/jinja/values/print_value.h"
#include "nibble/core/text/chat/jinja/values/unicode_text.h"

namespace nibble {

namespace {

using jinja::Dict;
using jinja::Items;
using jinja::Kind;
using jinja::Value;

// What continue_final_message puts behind the last message, to find its end again.
constexpr std::string_view kMark = "CONTINUE_FINAL_MESSAGE_TAG ", kBareMark = "CONTINUE_FINAL_MESSAGE_TAG";

Dict without_nulls(const Dict& message) {
  Dict kept;
  for (const auto& [key, value] : message.items()) {
    if (!value.is_none()) kept.set(key.as_text(), value);
  }
  return kept;
}

// Fills reasoning_content from the older names for it, and thinking for templates that read that.
Dict with_reasoning(const Dict& message) {
  const Value* reasoning = nullptr;
  for (const std::string_view name : kReasoningNames) {
    if (!reasoning) reasoning = message.find(name);
  }
  if (!reasoning) return message;
  Dict result;
  result.set("thinking", *reasoning);
  for (const auto& [key, value] : message.items()) result.set(key.as_text(), value);
  result.set("reasoning_content", *reasoning);
  return result;
}

class Continuation {
 public:
  Continuation(const Value& asked, const std::string& place) : place_(place) {
    if (asked.truth()) field_ = asked.is_text() ? asked.as_text() : "content";
  }

  bool asked() const { return !field_.empty(); }

  // Puts the mark behind the text that goes on.
  void mark(Dict& message, const std::string& source) {
    const Value* found = message.find(field_);
    if (!found) fail("the last message has no \"" + field_ + "\" to continue");
    const Value last = *found;
    std::vector<std::string_view> fields = {field_};
    if (std::ranges::count(kReasoningNames, field_) > 0) {
      fields.clear();
      jinja::Budget budget;
      for (const std::string_view name : kReasoningNames) {
        const Value* copy = message.find(name);
        if (copy && jinja::equal(*copy, last, budget)) fields.push_back(name);
      }
    }
    if (std::none_of(fields.begin(), fields.end(),
                     [&](std::string_view field) { return source.find(field) != std::string::npos; }))
      fail("the template does not read \"" + field_ + "\"");
    if (last.is_sequence()) {
      message.set(field_, marked_parts(last));
      return;
    }
    if (!last.is_text()) fail("the last message's \"" + field_ + "\" is no text");
    text_ = last.as_text();
    for (const std::string_view field : fields) message.set(field, Value::text(text_ + std::string(kMark)));
  }

  // Cuts the rendering at the mark.
  void cut(std::string& text) const {
    const std::string_view bare = jinja::stripped(text_, true, true);
    const size_t at = text.rfind(kBareMark);
    if (text.find(bare) == std::string::npos || at == std::string::npos)
      fail("the last message does not appear in the text that the template makes of it");
    const bool kept_blank = text.compare(at, kMark.size(), kMark) == 0;
    text.resize(at);
    if (!kept_blank) text.resize(jinja::stripped(text, false, true).size());
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const {
    throw InputError(place_, "continue_final_message is set, but " + reason);
  }

  // The last part that has a text.
  Value marked_parts(const Value& parts) {
    Items items = parts.items();
    for (size_t k = items.size(); k-- > 0;) {
      if (!items[k].is(Kind::dict)) continue;
      const Value* text = items[k].as_dict().find("text");
      if (!text) continue;
      if (!text->is_text()) fail("the last part's text is no text");
      text_ = text->as_text();
      Dict part = items[k].as_dict();
      part.set("text", Value::text(text_ + std::string(kMark)));
      items[k] = Value::dict(std::move(part));
      return Value::list(std::move(items));
    }
    fail("the last message has no text to continue");
  }

  const std::string& place_;
  std::string field_, text_;
};

Value list_of_dicts(const Dict& request, std::string_view name, const std::string& place) {
  const Value* value = request.find(name);
  if (!value || value->is_none()) return {};
  if (!value->is(Kind::list)) throw InputError(place, "\"" + std::string(name) + "\" is no list");
  for (const Value& item : value->items()) {
    if (!item.is(Kind::dict))
      throw InputError(place, "\"" + std::string(name) + "\" holds something else than objects");
  }
  return *value;
}

}  // namespace

TemplateRequest parse_template_request(std::string_view json, const std::string& place) {
  const Value parsed = jinja::parse_json_value(json, place);
  if (!parsed.is(Kind::dict)) throw InputError(place, "is no JSON object");
  const Dict& fields = parsed.as_dict();
  TemplateRequest request;
  request.messages = list_of_dicts(fields, "messages", place);
  request.tools = list_of_dicts(fields, "tools", place);
  request.documents = list_of_dicts(fields, "documents", place);
  for (const auto& [key, value] : fields.items()) {
    const std::string& name = key.as_text();
    if (name == "add_generation_prompt") {
      request.add_generation_prompt = value.truth();
    } else if (name == "continue_final_message") {
      request.continue_final_message = value;
    } else if (name == "chat_template_kwargs") {
      if (!value.is(Kind::dict) && !value.is_none()) throw InputError(place, "\"chat_template_kwargs\" is no object");
      if (value.is(Kind::dict)) request.variables = value.as_dict();
    }
  }
  return request;
}

Conversation conversation_of(const TemplateRequest& request) {
  Conversation conversation;
  jinja::Budget budget;
  if (!request.tools.is_none()) conversation.tools = jinja::to_json(request.tools, {}, budget);
  if (!request.documents.is_none()) conversation.documents = jinja::to_json(request.documents, {}, budget);
  if (!request.messages.is_sequence()) return conversation;
  for (const Value& item : request.messages.items()) {
    const std::string place = "messages[" + std::to_string(conversation.messages.size()) + "]";
    const Dict fields = with_reasoning(without_nulls(item.as_dict()));
    const auto text = [&](std::string_view key) -> std::string {
      const Value* value = fields.find(key);
      if (!value) return "";
      if (!value->is_text()) throw InputError(place, "\"" + std::string(key) + "\" is no text");
      return value->as_text();
    };
    ChatMessage message{text("role"), text("content"), "", text("reasoning_content"), true};
    const Value* calls = fields.find(fields.find("tool_calls") ? "tool_calls" : "function_call");
    if (calls && calls->truth()) message.tool_calls = jinja::to_json(*calls, {}, budget);
    conversation.messages.push_back(std::move(message));
  }
  return conversation;
}

ModelTemplates::ModelTemplates(const std::map<std::string, std::string>& sources,
                               std::map<std::string, std::string> special_tokens, const std::string& place,
                               std::function<std::tm()> now)
    : place_(place), special_tokens_(std::move(special_tokens)), now_(std::move(now)) {
  for (const auto& [name, source] : sources) {
    const std::string where = sources.size() == 1 ? place : place + " (" + name + ")";
    templates_.push_back({name, source, jinja::Template(source, where)});
  }
}

std::tm ModelTemplates::local_time() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  localtime_r(&now, &parts);
  return parts;
}

const ModelTemplates::Named& ModelTemplates::choose(bool with_tools) const {
  const auto named = [&](std::string_view name) {
    return std::find_if(templates_.begin(), templates_.end(), [&](const Named& t) { return t.name == name; });
  };
  if (with_tools && named("tool_use") != templates_.end()) return *named("tool_use");
  if (named("default") != templates_.end()) return *named("default");
  throw InputError(
      place_, "has several chat templates (" + joined(templates_, ", ", &Named::name) + ") and none is the default one",
      "give the template's file");
}

std::string ModelTemplates::bos() const {
  const auto found = special_tokens_.find("bos_token");
  return found == special_tokens_.end() ? "" : found->second;
}

jinja::Rendering ModelTemplates::apply(TemplateRequest request) const {
  if (!request.messages.is_sequence() || request.messages.items().empty())
    throw InputError(place_, "there is no message to apply the chat template to");
  Continuation continuation(request.continue_final_message, place_);
  if (continuation.asked() && request.add_generation_prompt)
    throw InputError(place_, "continue_final_message and add_generation_prompt exclude each other");
  const Named& chosen = choose(!request.tools.is_none());
  Items messages;
  for (const Value& message : request.messages.items())
    messages.push_back(Value::dict(with_reasoning(without_nulls(message.as_dict()))));
  if (continuation.asked()) {
    Dict last = messages.back().as_dict();
    continuation.mark(last, chosen.source);
    messages.back() = Value::dict(std::move(last));
  }
  Dict variables;
  for (const auto& [name, token] : special_tokens_) variables.set(name, Value::text(token));
  for (const auto& [name, value] : request.variables.items()) variables.set(name.as_text(), value);
  variables.set("messages", Value::list(std::move(messages)));
  variables.set("tools", std::move(request.tools));
  variables.set("documents", std::move(request.documents));
  variables.set("add_generation_prompt", Value::boolean(request.add_generation_prompt));
  jinja::Rendering rendering = chosen.compiled.render(variables, now_());
  if (continuation.asked()) continuation.cut(rendering.text);
  return rendering;
}

}  // namespace nibble
