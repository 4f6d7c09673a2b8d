#include "nibble/core/data/records/chat_record.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace nibble {

namespace {

// ShareGPT's names of the speakers.
constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kRoles = {{
    {"human", "user"},
    {"user", "user"},
    {"gpt", "assistant"},
    {"chatgpt", "assistant"},
    {"model", "assistant"},
    {"assistant", "assistant"},
    {"system", "system"},
    {"function_call", "assistant"},
    {"observation", "tool"},
    {"tool", "tool"},
}};

bool is_empty_text(const Json& value) { return value.is_string() && value.get_ref<const std::string&>().empty(); }

struct Turn {
  const JsonRecord& record;
  const Json& value;
  std::string name;  // "messages[2]"

  [[noreturn]] void fail(const std::string& reason, const std::string& remedy = "correct the record") const {
    record.fail(name + " " + reason, remedy);
  }

  const Json* find(const char* key) const {
    const auto found = value.find(key);
    return found == value.end() || found->is_null() ? nullptr : &*found;
  }
  std::string text(const char* key) const {
    const Json* found = find(key);
    if (found == nullptr) fail(std::string("has no \"") + key + "\"");
    if (!found->is_string()) record.fail_type(name + "." + key, *found, "a string");
    return found->get<std::string>();
  }
};

// One call in OpenAI's form from {"name": ..., "arguments": ...}, which ShareGPT files hold as a string.
Json function_call(const Turn& turn, const std::string& text) {
  Json call = parse_embedded_json(text);
  if (call.is_array() && call.size() == 1) call = Json(call[0]);
  if (!call.is_object() || !call.contains("name")) turn.fail("is a function call, but no JSON object with a name");
  return {{"type", "function"}, {"function", std::move(call)}};
}

// Content as a list of parts: text is joined, reasoning and tool calls go to their own places.
void read_parts(const Turn& turn, const Json& parts, ChatMessage& message, Json& calls) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const Turn part{turn.record, parts[i], turn.name + ".content[" + std::to_string(i) + "]"};
    if (!part.value.is_object()) turn.record.fail_type(part.name, part.value, "an object");
    const std::string type = part.text("type");
    const char* key = part.find("value") != nullptr ? "value" : "text";
    if (type == "text") {
      message.content += part.text(key);
    } else if (type == "reasoning") {
      message.reasoning += part.text(key);
    } else if (type == "tool_call") {
      calls.push_back(function_call(part, part.text(key)));
    } else {
      part.fail("has type \"" + type.substr(0, 40) + "\", but only text is read");
    }
  }
}

// OpenAI's "weight" and LLaMA-Factory's "loss_weight": 0 makes an answer context.
bool read_weight(const Turn& turn, const std::string& role) {
  for (const char* key : {"weight", "loss_weight"}) {
    const Json* weight = turn.find(key);
    if (weight == nullptr) continue;
    if (!weight->is_number()) turn.record.fail_type(turn.name + "." + key, *weight, "0 or 1");
    const double value = weight->get<double>();
    if (value != 0 && value != 1) turn.fail(std::string(key) + " must be 0 or 1");
    if (value == 1 && role != "assistant") turn.fail(std::string(key) + " is 1, but only answers are trained");
    return value == 1;
  }
  return true;
}

// Parts that templates do not know: reasoning, tool calls, text under another name.
bool has_parts_of_its_own(const Turn& turn) {
  const Json* content = turn.find("content");
  if (content == nullptr || !content->is_array()) return false;
  return std::any_of(content->begin(), content->end(),
                     [](const Json& part) { return part.value("type", "") != "text" || !part.contains("text"); });
}

// The message as it is, without what only says how it is trained.
std::string as_template_reads(const Json& message) {
  Json rest = message;
  for (const char* key : {"weight", "loss_weight"}) rest.erase(key);
  return json_text(rest);
}

ChatMessage read_message(const Turn& turn, bool share_gpt) {
  if (!turn.value.is_object()) turn.record.fail_type(turn.name, turn.value, "an object");
  ChatMessage message;
  message.place = turn.name;
  Json calls = Json::array();
  const std::string speaker = turn.text(share_gpt ? "from" : "role");
  message.role = speaker;
  if (share_gpt) {
    message.role.clear();
    for (const auto& [name, role] : kRoles) {
      if (name == speaker) message.role = role;
    }
    if (message.role.empty())
      turn.fail("is from \"" + speaker.substr(0, 40) + "\", who is not known",
                "known are human, gpt, system, observation, function_call, user, assistant, tool");
  }
  if (const Json* given = turn.find("tool_calls")) {
    if (!given->is_array()) turn.record.fail_type(turn.name + ".tool_calls", *given, "an array");
    calls = *given;
  }
  // OpenAI's older form of one call.
  if (const Json* given = turn.find("function_call"); given != nullptr && !given->empty() && !is_empty_text(*given))
    calls.push_back(function_call(turn, given->is_string() ? given->get<std::string>() : json_text(*given)));
  const char* key = share_gpt ? "value" : "content";
  const Json* content = turn.find(key);
  if (speaker == "function_call") {
    calls.push_back(function_call(turn, turn.text(key)));
  } else if (content != nullptr && content->is_array()) {
    read_parts(turn, *content, message, calls);
  } else if (content != nullptr || calls.empty()) {
    message.content = turn.text(key);
  }
  for (const std::string_view name : kReasoningNames) {
    if (message.reasoning.empty() && turn.find(name.data()) != nullptr) message.reasoning = turn.text(name.data());
  }
  if (!calls.empty()) message.tool_calls = json_text(calls);
  message.train = read_weight(turn, message.role);
  if (!share_gpt && !has_parts_of_its_own(turn)) message.json = as_template_reads(turn.value);
  return message;
}

// Tools and documents are an array, or a string that holds one; null where there is none.
Json read_list(const JsonRecord& record, const std::string& name) {
  const Json* list = record.find(name);
  if (list == nullptr || is_empty_text(*list)) return {};
  Json parsed = list->is_string() ? parse_embedded_json(list->get<std::string>()) : *list;
  if (!parsed.is_array()) record.fail("field \"" + name + "\" is no JSON array");
  return parsed;
}

std::string text_of(const Json& list) { return list.is_null() ? "" : json_text(list); }

}  // namespace

Conversation read_conversation_settings(const JsonRecord& record) {
  Conversation conversation;
  Json tools = read_list(record, "tools");
  for (Json& older : read_list(record, "functions")) {
    tools.push_back({{"type", "function"}, {"function", std::move(older)}});
  }
  conversation.tools = text_of(tools);
  conversation.documents = text_of(read_list(record, "documents"));
  if (const Json* arguments = record.find("chat_template_kwargs")) {
    if (!arguments->is_object()) record.fail_type("chat_template_kwargs", *arguments, "an object");
    conversation.template_arguments = json_text(*arguments);
  }
  return conversation;
}

Conversation start_conversation(const JsonRecord& record) {
  Conversation conversation = read_conversation_settings(record);
  const std::string system = record.optional_text("system");
  if (!system.empty()) conversation.messages.push_back({"system", system, "", "", true});
  return conversation;
}

ChatMessage read_answer(const JsonRecord& record, std::string text) {
  ChatMessage answer{"assistant", std::move(text), "", "", true};
  for (const std::string_view name : kReasoningNames) {
    const std::string key(name);
    const Json* value = record.find(key);
    if (value == nullptr || value->is_number() || value->is_binary() || value->is_boolean())
      continue;  // a score, a flag
    answer.reasoning = record.text(key);
    if (answer.reasoning.empty()) continue;
    answer.place = "\"" + record.file_name(key) + "\"";
    break;
  }
  return answer;
}

std::vector<ChatMessage> read_messages(const JsonRecord& record, const std::string& name) {
  // Tables have the fields of all turns in each, null where it has none.
  const auto is_share_gpt = [](const Json& turn) {
    return turn.is_object() && turn.contains("from") && !turn.at("from").is_null();
  };
  const Json* given = record.find(name);
  if (given != nullptr && given->is_object()) return {read_message({record, *given, name}, is_share_gpt(*given))};
  std::vector<ChatMessage> messages;
  const Json& turns = record.array(name);
  for (size_t i = 0; i < turns.size(); ++i) {
    messages.push_back(read_message({record, turns[i], name + "[" + std::to_string(i) + "]"}, is_share_gpt(turns[i])));
  }
  return messages;
}

Conversation read_conversation(const JsonRecord& record) {
  const std::string name = record.has("messages") ? "messages" : "conversations";
  if (record.array(name).empty())
    record.fail("field \"" + name + "\" is empty", "give it a question and an answer, or set data.skip_bad");
  Conversation conversation = start_conversation(record);
  std::vector<ChatMessage> messages = read_messages(record, name);
  const auto repeats = [&](const ChatMessage& system) {
    return messages[0].role == system.role && messages[0].content == system.content;
  };
  std::erase_if(conversation.messages, repeats);
  std::ranges::move(messages, std::back_inserter(conversation.messages));
  return conversation;
}

TextOrMessages read_alpaca_prompt(const JsonRecord& record, bool as_messages) {
  const std::string instruction = record.text("instruction"), input = record.optional_text("input");
  const std::string system = record.optional_text("system");
  const Json history = record.has("history") ? record.array("history") : Json::array();
  if (!as_messages) {
    if (!history.empty())
      record.fail("has a history, which Alpaca's prompt cannot show",
                  "set data.template (--template), for example to chatml, or to a .jinja file");
    return {alpaca_prompt(instruction, input, system), {}, false};
  }
  TextOrMessages prompt{{}, {}, true};
  if (!system.empty()) prompt.messages.push_back({"system", system, "", "", true});
  for (const Json& turn : history) {
    if (!turn.is_array() || turn.size() != 2 || !turn[0].is_string() || !turn[1].is_string()) {
      record.fail("field \"history\" must be a list of pairs of strings");
    }
    prompt.messages.push_back({"user", turn[0].get<std::string>(), "", "", true});
    prompt.messages.push_back({"assistant", turn[1].get<std::string>(), "", "", true});
  }
  prompt.messages.push_back({"user", input.empty() ? instruction : instruction + "\n" + input, "", "", true});
  return prompt;
}

}  // namespace nibble
