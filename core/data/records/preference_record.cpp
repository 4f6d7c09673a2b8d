#include "nibble/core/data/records/preference_record.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "nibble/core/base/error.h"
#include "nibble/core/data/records/chat_record.h"
#include "nibble/core/data/records/hidden_parts.h"
#include "nibble/core/models/batch.h"

namespace nibble {

namespace {

// Answers to one prompt, where the record has one beside them.
struct Answers {
  Conversation beside;  // tools, documents and the system message, where the prompt does not have it
  std::optional<TextOrMessages> prompt;
  std::vector<TextOrMessages> all;
};

TextOrMessages read_part(const JsonRecord& record, const std::string& name) {
  TextOrMessages part;
  const Json* value = record.find(name);
  part.is_chat = value != nullptr && value->is_structured();
  if (part.is_chat) {
    part.messages = read_messages(record, name);
  } else {
    part.text = record.text(name);
  }
  return part;
}

// The fields `names` with TRL's prompt, or with what LLaMA-Factory's and Axolotl's records have: a conversation up to
// the answer, or an instruction. Where names is one field, its answer may be the last message, or Alpaca's output, too.
Answers read_answers(const JsonRecord& record, const std::vector<std::string>& names, const DataOptions& options) {
  Answers answers;
  answers.beside = start_conversation(record);
  const bool has_prompt = record.has("prompt"), has_instruction = record.has("instruction");
  const bool has_messages = record.has("messages") || record.has("conversations");
  const bool needs_answer = names.size() == 1 && !has_prompt && !record.has(names[0]);
  if (needs_answer && has_messages) {
    TextOrMessages prompt{{}, read_conversation(record).messages, true};
    TextOrMessages answer{{}, {prompt.messages.back()}, true};
    if (prompt.messages.size() < 2 || answer.messages[0].role != "assistant")
      record.fail("has no prompt and answer in its messages", "let the answer be the last one, behind a question");
    prompt.messages.pop_back();
    return {read_conversation_settings(record), std::move(prompt), {std::move(answer)}};
  }
  for (const std::string& name : names) {
    answers.all.push_back(read_part(record, needs_answer && has_instruction ? "output" : name));
  }
  const auto is_whole = [](const TextOrMessages& answer) {  // a conversation, with the prompt in it
    return !answer.messages.empty() && answer.messages[0].role != "assistant";
  };
  if (has_prompt) {
    answers.prompt = read_part(record, "prompt");
  } else if (std::ranges::any_of(answers.all, is_whole)) {
    return answers;
  } else if (has_messages) {
    answers.beside.messages.clear();
    answers.prompt = TextOrMessages{{}, read_conversation(record).messages, true};
    if (answers.prompt->messages.back().role == "assistant")
      record.fail("has an answer at the end of its messages, which are the prompt of \"" + names[0] + "\"",
                  "end them with the question, or give a \"prompt\"");
  } else if (has_instruction) {
    answers.beside.messages.clear();
    answers.prompt = read_alpaca_prompt(
        record, !options.chat_template.empty() || std::ranges::any_of(answers.all, &TextOrMessages::is_chat));
  } else if (record.has("question")) {
    record.fail("has a \"question\", but no \"prompt\"", "set data.fields={\"prompt\": \"question\"} (--fields)");
  }
  return answers;
}

// Text as the turn of a conversation.
void make_chat(TextOrMessages& part, const std::string& role) {
  if (!part.is_chat) part.messages = {{role, std::exchange(part.text, {}), "", "", true}};
  part.is_chat = true;
}

bool same(const ChatMessage& a, const ChatMessage& b) {
  return a.role == b.role && a.content == b.content && a.tool_calls == b.tool_calls && a.reasoning == b.reasoning;
}

// Of messages as templates read them; in any order.
bool same_fields(const std::string& a, const std::string& b) {
  return a == b || nlohmann::json(parse_embedded_json(a)) == nlohmann::json(parse_embedded_json(b));
}

// Takes what both begin with from them. Of text, a blank before the place where they part stays with them; of messages,
// each keeps one at least.
TextOrMessages take_common(TextOrMessages& chosen, TextOrMessages& rejected) {
  TextOrMessages prompt;
  prompt.is_chat = chosen.is_chat;
  if (prompt.is_chat) {
    size_t count = 0;
    while (count + 1 < std::min(chosen.messages.size(), rejected.messages.size()) &&
           same(chosen.messages[count], rejected.messages[count]) &&
           same_fields(chosen.messages[count].json, rejected.messages[count].json)) {
      ++count;
    }
    const auto n = static_cast<ptrdiff_t>(count);
    prompt.messages.assign(chosen.messages.begin(), chosen.messages.begin() + n);
    for (TextOrMessages* part : {&chosen, &rejected})
      part->messages.erase(part->messages.begin(), part->messages.begin() + n);
    return prompt;
  }
  const auto differs = std::ranges::mismatch(chosen.text, rejected.text).in1;
  auto count = static_cast<size_t>(differs - chosen.text.begin());
  const auto continues = [&](const std::string& text) {
    return count < text.size() && (static_cast<unsigned char>(text[count]) & 0xC0U) == 0x80U;
  };
  while (count > 0 && (continues(chosen.text) || continues(rejected.text))) --count;  // whole characters
  const bool parted = count < std::min(chosen.text.size(), rejected.text.size());
  if (parted && count > 0 && chosen.text[count - 1] == ' ') --count;
  prompt.text = chosen.text.substr(0, count);
  for (TextOrMessages* part : {&chosen, &rejected}) part->text.erase(0, count);
  return prompt;
}

// Prompt and answer together; the record's `prompt` is for the group.
RenderedRecord render_pair(const TextOrMessages& prompt, const TextOrMessages& answer) {
  RenderedRecord rendered;
  rendered.add_bos = rendered.add_eos = true;
  rendered.text = prompt.text + answer.text;
  rendered.trained = {{prompt.text.size(), rendered.text.size()}};
  return rendered;
}

// `beside` with its system message first, unless the prompt begins with the same one.
Conversation join(Conversation beside, const TextOrMessages& prompt) {
  if (!beside.messages.empty() && !prompt.messages.empty() && same(beside.messages[0], prompt.messages[0]))
    beside.messages.clear();
  beside.messages.insert(beside.messages.end(), prompt.messages.begin(), prompt.messages.end());
  return beside;
}

// What the template writes is all there is, BOS and EOS too.
std::string render_messages(const JsonRecord& record, Conversation conversation, bool add_generation_prompt,
                            const Encoder& encoder) {
  if (!encoder.render_text) fail_without_template(record, encoder);
  if (conversation.messages.empty()) return {};
  try {
    return encoder.render_text(std::move(conversation), add_generation_prompt);
  } catch (const InputError& error) {
    record.fail(error.what());
  }
}

std::vector<int32_t> read_ids(const JsonRecord& record, const std::string& name, int64_t vocab_size) {
  std::vector<int32_t> ids;
  const Json& values = record.array(name);
  for (size_t i = 0; i < values.size(); ++i) ids.push_back(read_id(record, name, values[i], i, vocab_size, false));
  return ids;
}

RenderedRecord join_ids(const std::vector<int32_t>& prompt, const std::vector<int32_t>& answer) {
  RenderedRecord rendered;
  rendered.ids = prompt;
  rendered.ids.insert(rendered.ids.end(), answer.begin(), answer.end());
  rendered.labels.assign(prompt.size(), kIgnoreLabel);
  rendered.labels.insert(rendered.labels.end(), answer.begin(), answer.end());
  return rendered;
}

// Whether what is trained as an answer begins with what was asked.
bool begins_with_question(const TextOrMessages& prompt, const TextOrMessages& answer) {
  if (answer.is_chat) return !answer.messages.empty() && answer.messages.front().role != "assistant";
  return !is_blank(prompt.text) && answer.text.starts_with(prompt.text);
}

// One sample for each of the fields `answers`, to one prompt.
RenderedRecord render_answers(const JsonRecord& record, const std::vector<std::string>& answers,
                              const DataOptions& options, const Encoder& encoder) {
  std::vector<RenderedRecord> samples;
  bool empty = false, hidden = false, question = false;
  if (record.has(answers.front() + "_ids")) {
    std::vector<int32_t> prompt;
    if (record.has("prompt_ids")) prompt = read_ids(record, "prompt_ids", encoder.vocab_size);
    for (const std::string& name : answers) {
      samples.push_back(join_ids(prompt, read_ids(record, name + "_ids", encoder.vocab_size)));
      if (samples.back().ids.empty()) record.fail("field \"" + name + "_ids\" is empty");
    }
  } else {
    Answers given = read_answers(record, answers, options);
    std::optional<TextOrMessages>& prompt = given.prompt;
    std::vector<TextOrMessages>& parts = given.all;
    empty = std::ranges::all_of(parts, [](const TextOrMessages& part) {
      return is_blank(part.text) && std::ranges::all_of(part.messages, [](const ChatMessage& message) {
               return message.role != "assistant" || is_blank(message);
             });
    });
    bool chat = !options.chat_template.empty() || (prompt && prompt->is_chat);
    for (const TextOrMessages& part : parts) chat = chat || part.is_chat;
    if (!prompt && parts.size() == 1) record.text("prompt");  // is missing
    // Before a template makes turns of texts.
    if (prompt && !prompt->is_chat) {
      question = std::ranges::any_of(
          parts, [&](const TextOrMessages& part) { return !part.is_chat && begins_with_question(*prompt, part); });
    }
    if (chat) {
      const auto is_text = [](const TextOrMessages& part) { return !part.is_chat; };
      if (!prompt && std::ranges::any_of(parts, is_text)) {
        record.fail("has text and no \"prompt\": no turns for a chat template",
                    "give it a prompt, or messages; or leave data.template (--template) out: then what both texts "
                    "begin with is the prompt");
      }
      for (TextOrMessages& part : parts) make_chat(part, "assistant");
      // Sets that write the prompt once as text and again in front of each answer.
      const auto repeats = [&](const TextOrMessages& part) {
        return !part.messages.empty() && part.messages[0].role == "user" && part.messages[0].content == prompt->text;
      };
      if (prompt && !prompt->is_chat && std::ranges::all_of(parts, repeats)) prompt.reset();
      if (prompt) make_chat(*prompt, "user");
    }
    if (!prompt) {
      TextOrMessages twin = parts.back();  // of a lone answer all but its last message is the prompt
      prompt = take_common(parts.front(), parts.size() == 1 ? twin : parts.back());
    }
    question = question || std::ranges::any_of(
                               parts, [&](const TextOrMessages& part) { return begins_with_question(*prompt, part); });
    if (!chat) {
      const bool is_alpaca = !record.has("prompt") && record.has("instruction");
      hidden = has_parts_without_place(record, options, given.beside,
                                       is_alpaca ? "Alpaca's prompt" : "a text without a chat template");
    }
    const Conversation asked = join(given.beside, *prompt);
    for (const TextOrMessages& part : parts) {
      samples.push_back(render_pair(*prompt, part));
      if (!chat) continue;
      Conversation shown = asked;
      shown.messages.insert(shown.messages.end(), part.messages.begin(), part.messages.end());
      hidden = take_hidden_parts(record, options, encoder, shown) || hidden;
      samples.back() = {};
      samples.back().text = render_messages(record, shown, false, encoder);
      shown.messages.resize(asked.messages.size());
      if (samples.size() == 1) samples.front().prompt = render_messages(record, std::move(shown), true, encoder);
    }
    if (!chat) samples.front().prompt = prompt->text;
  }
  RenderedRecord first = std::move(samples.front());
  first.empty_answer = empty;
  first.hidden_parts = hidden;
  first.trained_question = question;
  first.others.assign(std::make_move_iterator(samples.begin() + 1), std::make_move_iterator(samples.end()));
  return first;
}

float read_value(const JsonRecord& record, const std::string& name, const Json& value) {
  if (value.is_binary()) return read_value(record, name, Json::parse(json_text(value)));
  if (!value.is_number()) record.fail_type(name, value, "a number");
  const float number = value.get<float>();
  if (!std::isfinite(number)) {
    record.fail("has the " + name + " " + value.dump() + ", which no 32-bit float holds", "give less than 3.4e+38");
  }
  return number;
}

// CSV has nothing but strings.
float read_value_or_text(const JsonRecord& record, const std::string& name, const Json& value) {
  if (!value.is_string()) return read_value(record, name, value);
  const Json number = parse_embedded_json(value.get<std::string>());
  return read_value(record, name, number.is_number() || number.is_binary() ? number : value);
}

}  // namespace

RenderedRecord render_preference(const JsonRecord& record, const DataOptions& options, const Encoder& encoder) {
  if (!record.has("chosen") && !record.has("chosen_ids") && record.has("label")) {
    const bool answer = record.has("completion") || record.has("completion_ids");
    record.fail("is no pair of a better and a worse answer: it has a \"label\"",
                std::string("it is read as ") +
                    (answer ? "unpaired, for objective.type kto" : "labeled, for objective.type classification") +
                    " (score: --format " + (answer ? "unpaired)" : "labeled)"));
  }
  if (record.has("preferred_output")) {
    JsonRecord fields = record;
    fields.take_fields_of("input");
    fields.array("messages");  // throws where there are none
    return render_answers(fields, {"preferred_output", "non_preferred_output"}, options, encoder);
  }
  RenderedRecord pair = render_answers(record, {"chosen", "rejected"}, options, encoder);
  if (const Json* margin = record.find("margin")) pair.values = {read_value_or_text(record, "margin", *margin)};
  return pair;
}

RenderedRecord render_unpaired(const JsonRecord& record, const DataOptions& options, const Encoder& encoder) {
  RenderedRecord answer = render_answers(record, {"completion"}, options, encoder);
  const Json* label = record.find(record.has("label") ? "label" : "kto_tag");
  if (!is_verdict(label)) {
    record.fail(
        label == nullptr ? "has no \"label\"" : "has the label " + json_text(*label) + ", expected true or false",
        "say whether the answer is a good one");
  }
  answer.values = {is_good(*label) ? 1.0f : 0.0f};
  return answer;
}

RenderedRecord render_labeled(const JsonRecord& record, const DataOptions& options, const Encoder& encoder) {
  RenderedRecord rendered;
  if (record.has("input_ids")) {
    rendered.ids = rendered.labels = read_ids(record, "input_ids", encoder.vocab_size);
    if (rendered.ids.empty()) record.fail("field \"input_ids\" is empty");
  } else if (record.has("messages") || record.has("conversations") || !options.chat_template.empty()) {
    Conversation conversation;
    if (record.has("messages") || record.has("conversations")) {
      conversation = read_conversation(record);
    } else {
      conversation.messages.push_back({"user", record.text("text"), "", "", true});
    }
    rendered.hidden_parts = take_hidden_parts(record, options, encoder, conversation);
    rendered.empty_answer =
        std::ranges::all_of(conversation.messages, [](const ChatMessage& message) { return is_blank(message); });
    rendered.text = render_messages(record, std::move(conversation), false, encoder);
    rendered.trained = {{0, rendered.text.size()}};
  } else {
    rendered = render_pair({}, {record.text("text"), {}, false});
    rendered.empty_answer = is_blank(rendered.text);
  }
  const Json* label = record.find("label");
  if (label == nullptr) record.fail("has no \"label\"", "give a number, or a list of numbers");
  for (const Json& value : label->is_array() ? *label : Json::array({*label})) {
    rendered.values.push_back(is_verdict(&value) ? (is_good(value) ? 1.0f : 0.0f)
                                                 : read_value_or_text(record, "label", value));
  }
  return rendered;
}

RenderedRecord render_prompt(const JsonRecord& record, const DataOptions& options, const Encoder& encoder) {
  RenderedRecord rendered;
  if (record.has("prompt_ids")) {
    rendered = join_ids(read_ids(record, "prompt_ids", encoder.vocab_size), {});
    if (rendered.ids.empty()) record.fail("field \"prompt_ids\" is empty");
    return rendered;
  }
  TextOrMessages prompt = read_part(record, "prompt");
  rendered.add_bos = !prompt.is_chat && options.chat_template.empty();
  rendered.text = prompt.text;
  if (rendered.add_bos) {
    rendered.hidden_parts =
        has_parts_without_place(record, options, start_conversation(record), "a text without a chat template");
  } else {
    make_chat(prompt, "user");
    Conversation conversation = join(start_conversation(record), prompt);
    rendered.hidden_parts = take_hidden_parts(record, options, encoder, conversation);
    rendered.text = render_messages(record, std::move(conversation), true, encoder);
  }
  if (rendered.text.empty()) record.fail("field \"prompt\" is empty");
  return rendered;
}

RenderedRecord render_rollout(const JsonRecord& record, const DataOptions& options, const Encoder& encoder) {
  const std::vector<int32_t> prompt = read_ids(record, "prompt_ids", encoder.vocab_size),
                             answer = read_ids(record, "completion_ids", encoder.vocab_size);
  if (prompt.empty()) record.fail("field \"prompt_ids\" is empty");
  if (answer.empty()) record.fail("field \"completion_ids\" is empty");
  if (answer.size() > kMostRolloutTokens) {
    record.fail("has a completion of " + std::to_string(answer.size()) + " tokens",
                "give at most " + std::to_string(kMostRolloutTokens));
  }
  RenderedRecord rendered = join_ids(prompt, answer);
  const std::string name = record.has("reward") ? "reward" : "score";
  const Json* reward = record.find(name);
  const auto has_field = [&](const char* field) {  // null or not
    return record.object().contains(record.file_name(field));
  };
  if (options.needs_reward && !has_field("reward") && !has_field("score")) {
    record.fail("has no \"reward\"", "give a number, or null where nothing can be said");
  }
  const bool says = reward != nullptr && !reward->is_null();
  const Json* truncated = record.find("truncated");
  if (truncated != nullptr && !truncated->is_boolean()) record.fail_type("truncated", *truncated, "true or false");
  rendered.values = {says ? read_value(record, name, *reward) : std::numeric_limits<float>::quiet_NaN(),
                     truncated == nullptr ? -1.0f : (truncated->get<bool>() ? 1.0f : 0.0f)};
  if (!record.has("old_logprobs")) return rendered;
  const Json& old = record.array("old_logprobs");
  if (old.size() != answer.size()) {
    record.fail(
        "has " + std::to_string(answer.size()) + " completion_ids, but " + std::to_string(old.size()) + " old_logprobs",
        "give one to each");
  }
  for (const Json& value : old) {
    rendered.values.push_back(read_value(record, "old_logprobs", value));
    if (rendered.values.back() > 0) {
      record.fail("has " + value.dump() + " in \"old_logprobs\"; a log-probability is not above 0");
    }
  }
  return rendered;
}

}  // namespace nibble
