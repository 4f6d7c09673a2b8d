#include "nibble/core/data/records/format.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "nibble/core/base/error.h"
#include "nibble/core/data/records/chat_record.h"
#include "nibble/core/data/records/hidden_parts.h"
#include "nibble/core/data/records/json_record.h"
#include "nibble/core/data/records/preference_record.h"
#include "nibble/core/models/batch.h"

namespace nibble {

namespace {

bool is_one_of(const Json& label, std::initializer_list<const char*> texts) {
  return std::ranges::any_of(texts, [&](const char* text) { return label == text; });
}

bool is_truth(const Json* label) {
  if (label == nullptr || !label->is_string()) return label != nullptr && label->is_boolean();
  return is_one_of(*label, {"True", "False", "true", "false", "TRUE", "FALSE"});  // CSV has nothing but strings
}

// The format that has the record's fields.
std::optional<DataFormat> find_format(const JsonRecord& record) {
  if (record.has("messages") || record.has("conversations")) return DataFormat::chat;
  if (record.has("instruction")) return DataFormat::alpaca;
  if (record.has("prompt") && (record.has("completion") || record.has("response"))) return DataFormat::completion;
  if (record.has("question") && record.has("answer")) return DataFormat::completion;
  if (record.has("text")) return DataFormat::text;
  return std::nullopt;
}

// A question whose answer is the letter of one of its choices, which are not in its text.
bool is_choice(const JsonRecord& record) {
  const Json* answer = record.find("answer");
  const Json* choices = record.find(record.has("choices") ? "choices" : "options");
  if (answer == nullptr || !answer->is_string() || choices == nullptr) return false;
  const auto letter = answer->get<std::string>(), question = record.optional_text("question");
  const auto is_shown = [&](const Json& choice) {
    return choice.is_string() && question.find(choice.get<std::string>()) != std::string::npos;
  };
  return letter.size() == 1 && std::isalpha(static_cast<unsigned char>(letter.front())) != 0 &&
         !(choices->is_array() && std::ranges::all_of(choices->begin(), choices->end(), is_shown));
}

// What is no example to follow must not become one because the fields of one are in it as well.
void refuse_other_objective(const JsonRecord& record) {
  for (const char* name : {"chosen", "rejected", "chosen_messages", "rejected_messages", "preferred_output"}) {
    if (!record.has(name)) continue;
    record.fail(
        "is a pair of a better and a worse answer (\"" + std::string(name) + "\")",
        "in a recipe set objective.type to dpo, orpo, ...; evaluate it with `nibble eval --format preference`; or name "
        "data.format (--format) to take what that reads");
  }
  const std::optional<DataFormat> format = find_format(record);
  if (format == DataFormat::completion && !record.has("prompt") && is_choice(record)) {
    record.fail(
        "is a question with choices, of which \"answer\" has a letter and \"question\" nothing",
        "evaluate it with `nibble eval --format choices`; to train on it write the choices into the question, or "
        "name data.format (--format completion)");
  }
  for (const char* name : {"label", "kto_tag"}) {
    const Json* label = record.find(name);
    // Beside a text alone, 0 and 1 are its class.
    const bool verdict = format == DataFormat::text ? is_truth(label) : is_verdict(label);
    if (!verdict || !format) continue;
    record.fail("is labelled as a good or a bad answer (\"" + std::string(name) + "\": " + label->dump() + ")",
                std::string("in a recipe set objective.type to ") +
                    (format == DataFormat::text ? "classification" : "kto") +
                    "; or keep the good ones without the label, or name data.format (--format " +
                    std::string(data_format_name(*format)) + ") to take all of them as good");
  }
}

DataFormat format_of_fields(const JsonRecord& record) {
  if (record.has("input_ids")) return DataFormat::tokens;
  refuse_other_objective(record);
  if (const std::optional<DataFormat> format = find_format(record)) return *format;
  record.refuse_unknown_columns();
  record.fail("has the fields " + record.field_names() + ", which are of no known format",
              "set data.format and data.fields (--format, --fields); known are input_ids; messages; conversations; "
              "instruction, output; "
              "prompt, completion; question, answer; text");
}

// Appends `answer` as a trained part.
void add_trained(RenderedRecord& rendered, const std::string& answer) {
  rendered.empty_answer = is_blank(answer);
  rendered.trained.push_back({rendered.text.size(), rendered.text.size() + answer.size()});
  rendered.text += answer;
}

// Where content is a list of parts that the template would take as text; empty where that is not what it refuses.
std::string parts_for_text(Conversation conversation, const Encoder& encoder) {
  std::string place;
  for (ChatMessage& message : conversation.messages) {
    Json fields = message.json.empty() ? Json::object() : Json::parse(message.json);
    if (!fields.value("content", Json()).is_array()) continue;
    if (place.empty()) place = message.place + ".content";
    fields["content"] = message.content;
    message.json = fields.dump();
  }
  try {
    if (!place.empty()) encoder.render_chat(conversation);
  } catch (const InputError&) {
    return "";
  }
  return place;
}

RenderedRecord render_conversation(const JsonRecord& record, Conversation conversation, const DataOptions& options,
                                   const Encoder& encoder) {
  if (!encoder.render_chat) fail_without_template(record, encoder);
  RenderedRecord rendered;
  rendered.hidden_parts = take_hidden_parts(record, options, encoder, conversation);
  try {
    RenderedChat chat = encoder.render_chat(conversation);
    rendered.text = std::move(chat.text);
    rendered.trained = std::move(chat.answers);
  } catch (const InputError& error) {
    if (const std::string place = parts_for_text(conversation, encoder); !place.empty())
      record.fail(place + " is a list of parts, and the chat template takes text",
                  "write the text itself there, or choose a data.template (--template) that takes parts");
    record.fail(error.what());
  }
  rendered.empty_answer = std::ranges::none_of(conversation.messages, [](const ChatMessage& message) {
    return message.role == "assistant" && message.train && !is_blank(message);
  });
  // A template that writes nothing after the answer would never teach the model to stop.
  rendered.add_eos = !rendered.trained.empty() && rendered.trained.back().end == rendered.text.size();
  rendered.may_end_itself = true;
  return rendered;
}

RenderedRecord render_alpaca(const JsonRecord& record, const DataOptions& options, const Encoder& encoder) {
  const bool has_history = record.has("history") && !record.array("history").empty();
  TextOrMessages prompt =
      read_alpaca_prompt(record, !options.chat_template.empty() && (options.chat_template != "alpaca" || has_history));
  const ChatMessage output = read_answer(record, record.text("output"));
  Conversation conversation = read_conversation_settings(record);
  conversation.messages = std::move(prompt.messages);
  conversation.messages.push_back(output);
  if (prompt.is_chat) return render_conversation(record, std::move(conversation), options, encoder);
  RenderedRecord rendered;
  rendered.add_bos = rendered.add_eos = true;
  // Not of the system message, which is in the text and not in `conversation`.
  rendered.hidden_parts = has_parts_without_place(record, options, conversation, "Alpaca's prompt");
  rendered.text = std::move(prompt.text);
  add_trained(rendered, output.content);
  return rendered;
}

RenderedRecord render_completion(const JsonRecord& record, const DataOptions& options, const Encoder& encoder) {
  const bool question = !record.has("prompt") && record.has("question");
  const char* answer_name =
      question ? "answer" : (!record.has("completion") && record.has("response") ? "response" : "completion");
  const Json* turns = question ? nullptr : record.find("prompt");
  if (turns != nullptr && turns->is_structured()) {
    Conversation conversation = start_conversation(record);
    for (ChatMessage& turn : read_messages(record, "prompt")) {
      turn.train = false;
      conversation.messages.push_back(std::move(turn));
    }
    std::ranges::move(read_messages(record, answer_name), std::back_inserter(conversation.messages));
    return render_conversation(record, std::move(conversation), options, encoder);
  }
  const std::string prompt = record.text(question ? "question" : "prompt");
  const ChatMessage answer = read_answer(record, record.text(answer_name));
  Conversation conversation = start_conversation(record);
  if (!options.chat_template.empty()) conversation.messages.push_back({"user", prompt, "", "", true});
  conversation.messages.push_back(answer);
  if (!options.chat_template.empty()) return render_conversation(record, std::move(conversation), options, encoder);
  RenderedRecord rendered;
  rendered.add_bos = rendered.add_eos = true;
  rendered.hidden_parts = has_parts_without_place(record, options, conversation, "a text without a chat template");
  rendered.text = question ? "Question: " + prompt + "\nAnswer:" : prompt;
  add_trained(rendered, question ? " " + answer.content : answer.content);
  return rendered;
}

}  // namespace

int32_t read_id(const JsonRecord& record, const std::string& name, const Json& value, size_t i, int64_t vocab_size,
                bool is_label) {
  const std::string place = name + "[" + std::to_string(i) + "]";
  if (!value.is_number_integer()) record.fail_type(place, value, "a whole number");
  // Above 2^63 nlohmann holds an unsigned value, which would wrap.
  const bool huge = value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX};
  const int64_t id = huge ? INT64_MAX : value.get<int64_t>();
  if (is_label && id == kIgnoreLabel) return kIgnoreLabel;
  if (id < 0 || id >= vocab_size) {
    record.fail(place + " is " + value.dump() + ", outside the vocabulary of " + std::to_string(vocab_size) + " tokens",
                "encode the data with this model's tokenizer");
  }
  return static_cast<int32_t>(id);
}

bool is_verdict(const Json* label) {
  return is_truth(label) || (label != nullptr && (*label == 0 || *label == 1 || *label == "0" || *label == "1"));
}

bool is_good(const Json& label) {
  return label == true || label == 1 || is_one_of(label, {"True", "true", "TRUE", "1"});
}

namespace {

// What input_ids may have beside them: labels, and TRL's masks, whose 0 is not trained.
constexpr std::array<const char*, 3> kBesideIds = {"labels", "assistant_masks", "completion_mask"};
using BesideIds = std::array<const Json*, kBesideIds.size()>;  // null where there is none

bool read_mask(const JsonRecord& record, const std::string& place, const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value == 0 || value == 1) return value == 1;
  if (!value.is_number()) record.fail_type(place, value, "0 or 1");
  record.fail(place + " is " + value.dump() + ", expected 0 or 1");
}

int32_t read_label(const JsonRecord& record, const std::string& name, const Json& value, size_t i, int32_t id,
                   const Encoder& encoder) {
  const int32_t label = read_id(record, name, value, i, encoder.vocab_size, true);
  if (label != kIgnoreLabel && label != id) {
    record.fail(name + "[" + std::to_string(i) + "] is " + std::to_string(label) + ", but input_ids there is " +
                    std::to_string(id),
                "labels are not shifted: give the id itself, or -100 where nothing is trained");
  }
  return label;
}

// which: "[1]" in a record of several samples.
RenderedRecord read_tokens(const JsonRecord& record, const Json& ids, const BesideIds& beside, const std::string& which,
                           const Encoder& encoder) {
  if (ids.empty()) record.fail("field \"input_ids" + which + "\" is empty");
  RenderedRecord rendered;
  rendered.ids.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    rendered.ids.push_back(read_id(record, "input_ids" + which, ids[i], i, encoder.vocab_size, false));
  }
  rendered.labels = rendered.ids;
  for (size_t field = 0; field < beside.size(); ++field) {
    if (beside[field] == nullptr) continue;
    const Json& values = *beside[field];
    const std::string name = kBesideIds[field] + which;
    if (values.size() != ids.size()) {
      record.fail("has " + std::to_string(ids.size()) + " input_ids" + which + ", but " +
                  std::to_string(values.size()) + " " + kBesideIds[field]);
    }
    for (size_t i = 0; i < values.size(); ++i) {
      int32_t& label = rendered.labels[i];
      if (field == 0) {
        label = read_label(record, name, values[i], i, rendered.ids[i], encoder);
      } else if (!read_mask(record, name + "[" + std::to_string(i) + "]", values[i])) {
        label = kIgnoreLabel;
      }
    }
  }
  if (beside == BesideIds{}) return rendered;
  rendered.empty_answer = encoder.eos && std::ranges::all_of(rendered.labels, [&](int32_t label) {
                            return label == kIgnoreLabel || label == *encoder.eos;
                          });
  return rendered;
}

RenderedRecord render_tokens(const JsonRecord& record, const Encoder& encoder) {
  const Json& ids = record.array("input_ids");
  BesideIds beside{};
  for (size_t field = 0; field < beside.size(); ++field) {
    if (record.has(kBesideIds[field])) beside[field] = &record.array(kBesideIds[field]);
  }
  if (ids.empty() || !ids[0].is_array()) return read_tokens(record, ids, beside, "", encoder);
  std::vector<RenderedRecord> samples;
  for (size_t k = 0; k < ids.size(); ++k) {
    const std::string which = "[" + std::to_string(k) + "]";
    if (!ids[k].is_array()) record.fail_type("input_ids" + which, ids[k], "a list, as the first is");
    BesideIds own{};
    for (size_t field = 0; field < beside.size(); ++field) {
      if (beside[field] == nullptr) continue;
      const Json& lists = *beside[field];
      if (lists.size() != ids.size()) {
        record.fail("has " + std::to_string(ids.size()) + " lists of input_ids, but " + std::to_string(lists.size()) +
                    " of " + kBesideIds[field]);
      }
      if (!lists[k].is_array()) record.fail_type(kBesideIds[field] + which, lists[k], "a list");
      own[field] = &lists[k];
    }
    samples.push_back(read_tokens(record, ids[k], own, which, encoder));
  }
  RenderedRecord first = std::move(samples.front());
  first.others.assign(std::make_move_iterator(samples.begin() + 1), std::make_move_iterator(samples.end()));
  return first;
}

}  // namespace

DataFormat detect_format(const std::string& path, const RawRecord& record, const DataOptions& options) {
  return format_of_fields(JsonRecord(path, record, options.fields));
}

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == std::string_view::npos; }

bool is_blank(const ChatMessage& answer) {
  return is_blank(answer.content) && answer.tool_calls.empty() && is_blank(answer.reasoning);
}

RenderedRecord render_document(std::string text) {
  RenderedRecord rendered;
  rendered.empty_answer = is_blank(text);
  rendered.text = std::move(text);
  rendered.trained.push_back({0, rendered.text.size()});
  rendered.add_bos = rendered.add_eos = true;
  rendered.whole = false;
  return rendered;
}

namespace {

RenderedRecord render(const JsonRecord& record, DataFormat format, const DataOptions& options, const Encoder& encoder) {
  if (options.format == DataFormat::automatic && !record.has("input_ids")) refuse_other_objective(record);
  RenderedRecord rendered;
  switch (format) {
    case DataFormat::tokens:
      return render_tokens(record, encoder);
    case DataFormat::text:
      return render_document(record.text("text"));
    case DataFormat::chat:
      rendered = render_conversation(record, read_conversation(record), options, encoder);
      break;
    case DataFormat::alpaca:
      rendered = render_alpaca(record, options, encoder);
      break;
    case DataFormat::completion:
      rendered = render_completion(record, options, encoder);
      break;
    case DataFormat::preference:
      return render_preference(record, options, encoder);
    case DataFormat::unpaired:
      return render_unpaired(record, options, encoder);
    case DataFormat::labeled:
      return render_labeled(record, options, encoder);
    case DataFormat::prompts:
      return render_prompt(record, options, encoder);
    case DataFormat::rollouts:
      return render_rollout(record, options, encoder);
    case DataFormat::automatic:
      NIBBLE_CHECK(false, "the format is known before records are rendered");
  }
  if (options.train_on_prompt) {
    rendered.trained.assign(1, {0, rendered.text.size()});
    rendered.empty_answer = is_blank(rendered.text);
  }
  return rendered;
}

}  // namespace

RenderedRecord render_record(const std::string& path, const RawRecord& raw, DataFormat format,
                             const DataOptions& options, const Encoder& encoder) {
  return render(JsonRecord(path, raw, options.fields), format, options, encoder);
}

void check_fields(const std::string& path, std::span<const RawRecord> records, DataFormat format,
                  const DataOptions& options, const Encoder& encoder, bool more_files, std::set<std::string>& used) {
  if (used.size() == options.fields.size()) return;
  std::set<std::string> there, asked;
  const RawRecord *first = nullptr, *readable = nullptr;
  for (const RawRecord& raw : records) {
    if (there.size() == options.fields.size() && readable != nullptr) break;
    try {
      const JsonRecord record(path, raw, options.fields);
      if (first == nullptr) first = &raw;
      for (const auto& [name, column] : options.fields) {
        if (record.object().contains(column)) there.insert(name);
      }
      if (readable != nullptr) continue;
      render(record, format, options, encoder);
      readable = &raw;
      asked = record.asked();
    } catch (const InputError&) {  // reported in its turn
    }
  }
  std::map<std::string, std::string> missing, unread;
  for (const auto& [name, column] : options.fields) {
    // Rewards read other fields of prompts.
    const bool is_read = readable == nullptr || asked.contains(name) || format == DataFormat::prompts;
    if (there.contains(name) && is_read) used.insert(name);
    if (!used.contains(name)) (there.contains(name) ? unread : missing).emplace(name, column);
  }
  if (more_files || first == nullptr) return;
  JsonRecord(path, *first, missing).refuse_unknown_columns();
  JsonRecord(path, *first, unread)
      .refuse_unread_fields("the format " + std::string(data_format_name(format)), {asked.begin(), asked.end()});
}

namespace {

// All that is not in every sample's and the prompt's beginning is trained.
void train_behind(const std::string& prompt, const Encoder& encoder, bool add_bos, EncodedRecord& group) {
  RenderedRecord alone;
  alone.text = prompt;
  alone.add_bos = add_bos;
  const std::vector<int32_t> ids = encode_record(std::move(alone), encoder).ids;
  size_t common = ids.size();
  const auto each = [&](const auto& use) {
    use(group);
    for (EncodedRecord& other : group.others) use(other);
  };
  each([&](const EncodedRecord& sample) {
    const auto differs = std::ranges::mismatch(sample.ids, ids).in2;
    common = std::min(common, static_cast<size_t>(differs - ids.begin()));
  });
  each([&](EncodedRecord& sample) {
    sample.prompt_cut = common < ids.size();
    sample.labels = sample.ids;
    std::fill_n(sample.labels.begin(), common, kIgnoreLabel);
  });
}

}  // namespace

EncodedRecord encode_record(RenderedRecord record, const Encoder& encoder) {
  if (const std::optional<std::string> prompt = std::exchange(record.prompt, std::nullopt)) {
    const bool add_bos = record.add_bos;
    EncodedRecord group = encode_record(std::move(record), encoder);
    train_behind(*prompt, encoder, add_bos, group);
    return group;
  }
  EncodedRecord encoded;
  encoded.values = std::move(record.values);
  encoded.whole = record.whole;
  encoded.hidden_parts = record.hidden_parts;
  encoded.empty_answer = record.empty_answer;
  encoded.trained_question = record.trained_question;
  for (RenderedRecord& other : record.others) encoded.others.push_back(encode_record(std::move(other), encoder));
  if (!record.ids.empty()) {
    encoded.ids = std::move(record.ids);
    encoded.labels = std::move(record.labels);
    return encoded;
  }
  const std::vector<int32_t> prefix = record.add_bos ? encoder.prefix : std::vector<int32_t>();
  encoded.ids = prefix;
  encoded.labels.assign(prefix.size(), kIgnoreLabel);
  // Of a long text growing would hold the tokens twice; what stays unused is never touched.
  constexpr size_t kLong = size_t{1} << 16;
  if (record.text.size() > kLong) {
    encoded.ids.reserve(prefix.size() + record.text.size() / 2);
    encoded.labels.reserve(prefix.size() + record.text.size() / 2);
  }
  size_t k = 0;                 // the first trained span that ends behind the token's begin
  std::optional<int32_t> last;  // token that is no blank
  encoder.encode(record.text, [&](std::span<const TokenSpan> tokens) {
    for (const TokenSpan& token : tokens) {
      const size_t begin = static_cast<size_t>(token.begin), end = static_cast<size_t>(token.end);
      while (k < record.trained.size() && record.trained[k].end <= begin) ++k;
      const bool trained = k < record.trained.size() && std::max(end, begin + 1) > record.trained[k].begin;
      encoded.ids.push_back(token.id);
      encoded.labels.push_back(trained ? token.id : kIgnoreLabel);
      if (!is_blank(std::string_view(record.text).substr(begin, end - begin))) last = token.id;
    }
  });
  if (record.may_end_itself && last && encoder.is_special && encoder.is_special(*last)) record.add_eos = false;
  const auto own = encoded.ids.begin() + static_cast<ptrdiff_t>(prefix.size());
  encoded.duplicate_bos = !prefix.empty() && encoded.ids.end() - own >= own - encoded.ids.begin() &&
                          std::equal(prefix.begin(), prefix.end(), own);
  if (encoded.duplicate_bos) {
    encoded.ids.erase(encoded.ids.begin(), own);
    encoded.labels.erase(encoded.labels.begin(), encoded.labels.begin() + static_cast<ptrdiff_t>(prefix.size()));
  }
  if (record.add_eos && encoder.eos && (encoded.ids.empty() || encoded.ids.back() != *encoder.eos)) {
    encoded.ids.push_back(*encoder.eos);
    encoded.labels.push_back(*encoder.eos);
  }
  return encoded;
}

}  // namespace nibble
