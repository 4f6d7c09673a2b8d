#include "nibble/core/text/chat/model_chat_template.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>

#include "nibble/core/base/error.h"
#include "nibble/core/text/chat/jinja/values/json_value.h"
#include "nibble/core/text/chat/jinja/values/unicode_text.h"

namespace nibble {

namespace {

using jinja::Dict;
using jinja::Items;
using jinja::Value;

// Words that stand in no text: their first and last characters are of Unicode's private use.
constexpr std::string_view kOtherWords = "\uE0A3other words\uE0A7";

constexpr std::string_view kCallNames[] = {"tool_calls", "function_call"}, kContentName[] = {"content"};

Value value_of(const ChatMessage& message, size_t k) {
  const std::string place = "messages[" + std::to_string(k) + "]";
  if (!message.json.empty()) return jinja::parse_json_value(message.json, place);
  Dict fields;
  fields.set("role", Value::text(message.role));
  fields.set("content", Value::text(message.content));
  if (!message.reasoning.empty()) fields.set("reasoning_content", Value::text(message.reasoning));
  if (!message.tool_calls.empty()) fields.set("tool_calls", jinja::parse_json_value(message.tool_calls, place));
  return Value::dict(std::move(fields));
}

TemplateRequest request_of(const Conversation& conversation) {
  TemplateRequest request;
  Items messages;
  for (size_t k = 0; k < conversation.messages.size(); ++k) messages.push_back(value_of(conversation.messages[k], k));
  request.messages = Value::list(std::move(messages));
  if (!conversation.tools.empty()) request.tools = jinja::parse_json_value(conversation.tools, "tools");
  if (!conversation.documents.empty()) request.documents = jinja::parse_json_value(conversation.documents, "documents");
  if (!conversation.template_arguments.empty()) {
    request.variables = jinja::parse_json_value(conversation.template_arguments, "chat_template_kwargs").as_dict();
  }
  return request;
}

// The same request with the first `count` messages.
TemplateRequest first_messages(const TemplateRequest& request, size_t count, bool add_generation_prompt) {
  TemplateRequest first = request;
  const Items& all = request.messages.items();
  first.messages = Value::list({all.begin(), all.begin() + static_cast<ptrdiff_t>(count)});
  first.add_generation_prompt = add_generation_prompt;
  return first;
}

// The same request with messages [0, first), [begin, end) and from `last` on alone.
TemplateRequest shortened(const TemplateRequest& request, size_t first, size_t begin, size_t end, size_t last) {
  TemplateRequest rest = request;
  Items messages;
  for (const auto& [from, to] : {std::pair{size_t{0}, first}, {begin, end}, {last, request.messages.items().size()}}) {
    for (size_t k = from; k < to; ++k) messages.push_back(request.messages.items()[k]);
  }
  rest.messages = Value::list(std::move(messages));
  return rest;
}

// Messages of `role` behind one of `before`, some way from each other.
std::vector<size_t> turns(const Conversation& conversation, std::string_view before, std::string_view role) {
  constexpr size_t kWay = 8;
  std::vector<size_t> found;
  for (size_t k = 1; k < conversation.messages.size(); ++k) {
    const bool turn = conversation.messages[k - 1].role == before && conversation.messages[k].role == role;
    if (turn && (found.empty() || k - found.back() >= kWay)) found.push_back(k);
  }
  return found;
}

// The same request with another message k.
TemplateRequest with_message(const TemplateRequest& request, size_t k, const Value& message) {
  TemplateRequest changed = request;
  Items messages = request.messages.items();
  messages[k] = message;
  changed.messages = Value::list(std::move(messages));
  return changed;
}

// The same request with kOtherWords as all that message k says.
TemplateRequest with_other_words(const TemplateRequest& request, size_t k) {
  const Dict& output = request.messages.items()[k].as_dict();
  Value content = Value::text(std::string(kOtherWords));
  const Value* before = output.find("content");
  if (before && before->is_sequence()) {
    Dict part;
    part.set("type", Value::text("text"));
    part.set("text", content);
    content = Value::list({Value::dict(std::move(part))});
  }
  Dict other;
  const Value* role = output.find("role");
  other.set("role", role ? *role : Value::text("assistant"));
  other.set("content", std::move(content));
  return with_message(request, k, Value::dict(std::move(other)));
}

// The message without the fields of these names.
Value without(const Value& message, std::span<const std::string_view> names) {
  Dict rest = message.as_dict();
  for (const std::string_view name : names) rest.erase(name);
  return Value::dict(std::move(rest));
}

bool has_any(const Value& message, std::span<const std::string_view> names) {
  return std::any_of(names.begin(), names.end(), [&](std::string_view name) {
    const Value* value = message.as_dict().find(name);
    return value != nullptr && value->truth();
  });
}

// Whether the text shows a message, as far as that is clear without another rendering: of roles that every template
// knows by any words of it, of others by words that are too long to stand there by chance.
bool is_plainly_shown(const ChatMessage& message, const std::string& text) {
  constexpr size_t kByChance = 16;  // shorter words may stand there for another message
  const bool known = message.role == "user" || message.role == "assistant";
  return !message.content.empty() && (known || message.content.size() >= kByChance) &&
         text.find(message.content) != text.npos;
}

// Spans of all answers, or of those that are trained where every answer has one; nullopt where that is not clear.
std::optional<std::vector<TextSpan>> marked_answers(const jinja::Rendering& rendering,
                                                    const std::vector<bool>& trained) {
  std::vector<TextSpan> spans;
  size_t end = 0;
  for (const jinja::GeneratedSpan& span : rendering.generated) {
    if (span.bytes.begin < end || span.bytes.end > rendering.text.size()) return std::nullopt;
    end = span.bytes.end;
    spans.push_back(span.bytes);
  }
  if (spans.empty()) return std::nullopt;
  const bool all = std::find(trained.begin(), trained.end(), false) == trained.end();
  if (!all && spans.size() != trained.size()) return std::nullopt;
  std::vector<TextSpan> answers;
  for (size_t k = 0; k < spans.size(); ++k) {
    if ((all || trained[k]) && spans[k].begin < spans[k].end) answers.push_back(spans[k]);
  }
  return answers;
}

// The mark behind an answer that ends at byte `end`, as it stands in front of another turn: "" where no turn follows
// that begins as the text does behind `bos`, and where what is between them is no single mark.
std::string_view mark_before_turn(std::string_view text, size_t end, std::string_view bos) {
  constexpr size_t kLongest = 64, kLeastOpening = 3;
  std::string_view opening = text;
  if (opening.starts_with(bos)) opening.remove_prefix(bos.size());
  opening = jinja::stripped(opening, true, false);
  size_t most = kLeastOpening - 1, turn = end;
  for (size_t at = end; at < std::min(text.size(), end + kLongest); ++at) {
    const std::string_view rest = text.substr(at);
    const auto same = static_cast<size_t>(std::ranges::mismatch(rest, opening).in1 - rest.begin());
    if (same > most) most = same, turn = at;
  }
  const std::string_view mark = jinja::stripped(text.substr(end, turn - end), false, true);
  const bool single = mark.starts_with('<') && mark.ends_with('>') && mark.find_first_of(" \t\r\n") == mark.npos;
  return single ? mark : "";
}

}  // namespace

RenderedChat ModelChatTemplate::render(const Conversation& conversation, bool add_generation_prompt) const {
  TemplateRequest request = request_of(conversation);
  request.add_generation_prompt = add_generation_prompt;
  jinja::Rendering rendering = templates_.apply(request);
  RenderedChat chat{std::move(rendering.text), {}};
  if (add_generation_prompt) return chat;
  std::vector<bool> trained;
  for (const ChatMessage& message : conversation.messages) {
    if (message.role == "assistant") trained.push_back(message.train);
  }
  rendering.text = chat.text;
  if (std::optional<std::vector<TextSpan>> marked = marked_answers(rendering, trained)) {
    chat.answers = std::move(*marked);
    return chat;
  }
  for (const Excerpt& part : excerpts(conversation, request, chat.text)) {
    for (size_t k = part.begin; k < part.end; ++k) {
      const ChatMessage& message = conversation.messages[k + part.skipped];
      if (message.role != "assistant" || !message.train) continue;
      const TextSpan answer = find_answer(part, k);
      chat.answers.push_back({answer.begin + part.shift, answer.end + part.shift});
    }
  }
  std::erase_if(chat.answers, [](const TextSpan& answer) { return answer.begin >= answer.end; });
  return chat;
}

std::optional<std::string> ModelChatTemplate::try_render(const TemplateRequest& request) const {
  try {
    return templates_.apply(request).text;
  } catch (const InputError&) {  // a template may refuse a part of a conversation
    return std::nullopt;
  }
}

std::vector<ModelChatTemplate::Excerpt> ModelChatTemplate::excerpts(const Conversation& conversation,
                                                                    const TemplateRequest& request,
                                                                    const std::string& text) const {
  constexpr size_t kShort = 64;
  const size_t count = conversation.messages.size();
  if (count > kShort) {
    std::array<std::vector<size_t>, 2> cuts = {turns(conversation, "assistant", "user"),
                                               turns(conversation, "tool", "assistant")};
    if (cuts[1].size() > cuts[0].size()) std::swap(cuts[0], cuts[1]);
    for (const std::vector<size_t>& of : cuts) {
      if (std::vector<Excerpt> parts = cut_at(of, request, text); !parts.empty()) return parts;
    }
  }
  return {{request, text, 0, count}};
}

std::vector<ModelChatTemplate::Excerpt> ModelChatTemplate::cut_at(const std::vector<size_t>& cuts,
                                                                  const TemplateRequest& request,
                                                                  const std::string& text) const {
  if (cuts.size() < 3) return {};
  const size_t first = cuts.front(), last = cuts.back();
  const std::optional<std::string> ends = try_render(shortened(request, first, last, last, last));
  if (!ends) return {};
  std::vector<Excerpt> parts;
  size_t head = ends->size();  // bytes that all begin with
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    const size_t begin = cuts[i], end = cuts[i + 1], skipped = begin - first;
    Excerpt part{shortened(request, first, begin, end, last), {}, first, end - skipped, skipped};
    part.text = try_render(part.request).value_or("");
    if (part.text.size() < ends->size()) return {};
    head = std::min(head, static_cast<size_t>(std::ranges::mismatch(part.text, *ends).in1 - part.text.begin()));
    parts.push_back(std::move(part));
  }
  parts.front().begin = 0;
  parts.back().end = parts.back().request.messages.items().size();
  const std::string_view tail = std::string_view(*ends).substr(head);
  std::string joined = ends->substr(0, head);
  for (Excerpt& part : parts) {
    if (!part.text.ends_with(tail)) return {};
    part.shift = joined.size() - head;
    joined.append(part.text, head, part.text.size() - ends->size());
  }
  return joined.append(tail) == text ? parts : std::vector<Excerpt>();
}

bool ModelChatTemplate::shows(const Excerpt& part, size_t k, const Value& changed) const {
  const TemplateRequest other = with_message(part.request, k, changed);
  if (try_render(other) != part.text) return true;
  // Templates take thoughts out of earlier answers: what they show of the last message counts.
  const std::optional<std::string> last = try_render(first_messages(part.request, k + 1, false));
  return !last || try_render(first_messages(other, k + 1, false)) != last;
}

std::vector<HiddenPart> ModelChatTemplate::hidden_parts(const Conversation& conversation) const {
  const TemplateRequest request = request_of(conversation);
  const std::optional<std::string> text = try_render(request);
  if (!text) return {};  // render() says why
  std::vector<HiddenPart> hidden;
  for (const auto& [kind, list] : {std::pair{HiddenPart::Kind::tools, &TemplateRequest::tools},
                                   {HiddenPart::Kind::documents, &TemplateRequest::documents}}) {
    if (!(request.*list).truth()) continue;
    TemplateRequest rest = request;
    rest.*list = {};
    if (try_render(rest) == text) hidden.push_back({kind, 0});
  }
  for (const Excerpt& part : excerpts(conversation, request, *text)) {
    for (size_t k = part.begin; k < part.end; ++k) {
      const Value& message = part.request.messages.items()[k];
      const size_t number = k + part.skipped;
      const auto check = [&](HiddenPart::Kind kind, std::span<const std::string_view> names) {
        if (has_any(message, names) && !shows(part, k, without(message, names))) hidden.push_back({kind, number});
      };
      check(HiddenPart::Kind::tool_calls, kCallNames);
      check(HiddenPart::Kind::reasoning, kReasoningNames);
      if (has_any(message, kContentName) && !is_plainly_shown(conversation.messages[number], part.text) &&
          !shows(part, k, with_other_words(part.request, k).messages.items()[k])) {
        hidden.push_back({HiddenPart::Kind::message, number});
      }
    }
  }
  return hidden;
}

TextSpan ModelChatTemplate::find_answer(const Excerpt& part, size_t k) const {
  const TemplateRequest& request = part.request;
  const std::string& text = part.text;
  const TemplateRequest changed = with_other_words(request, k);
  const std::string other = try_render(changed).value_or("");
  const size_t words = other.find(kOtherWords);
  if (words == std::string::npos)
    throw InputError("messages[" + std::to_string(k + part.skipped) + "]",
                     "the chat template does not show this answer",
                     "give it \"weight\": 0, or choose another data.template");
  const size_t behind = other.size() - words - kOtherWords.size();
  const auto first_change =
      std::mismatch(text.begin(), text.end(), other.begin(), other.begin() + static_cast<ptrdiff_t>(words));
  TextSpan answer{static_cast<size_t>(first_change.first - text.begin()), text.size()};
  size_t same = 0;
  while (same < behind && same < text.size() - answer.begin &&
         text[text.size() - 1 - same] == other[other.size() - 1 - same])
    ++same;
  answer.end = text.size() - same;
  const auto inside_character = [&](size_t at) {
    return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
  };
  while (inside_character(answer.end)) ++answer.end;
  while (inside_character(answer.begin)) --answer.begin;

  // The mark that ends a turn, as it stands behind the last message of a conversation.
  if (const std::optional<std::string> last = try_render(first_messages(changed, k + 1, false))) {
    const size_t output = last->find(kOtherWords);
    if (output != std::string::npos) {
      const std::string_view mark =
          jinja::stripped(std::string_view(*last).substr(output + kOtherWords.size()), false, true);
      if (!mark.empty() && std::string_view(text).substr(answer.end).starts_with(mark)) {
        answer.end += mark.size();
      } else if (const std::string_view own = mark_before_turn(text, answer.end, templates_.bos());
                 mark.starts_with(own) || mark.empty()) {  // or with nothing, or with more, at a conversation's end
        answer.end += own.size();
      }
    }
  }
  if (k == 0) return answer;
  const std::optional<std::string> prompt = try_render(first_messages(request, k, true));
  if (prompt && text.starts_with(*prompt) && prompt->size() <= answer.end) {
    answer.begin = prompt->size();
    return answer;
  }
  // Not prefix-stable: the generation prompt stands close before what differs.
  constexpr size_t kClose = 64;
  const std::optional<std::string> without = try_render(first_messages(request, k, false));
  if (prompt && without && prompt->size() > without->size() && prompt->starts_with(*without)) {
    const std::string header = prompt->substr(without->size());
    const size_t at =
        answer.begin < header.size() ? std::string::npos : text.rfind(header, answer.begin - header.size());
    if (at != std::string::npos && answer.begin - at - header.size() <= kClose) answer.begin = at + header.size();
  }
  return answer;
}

}  // namespace nibble
