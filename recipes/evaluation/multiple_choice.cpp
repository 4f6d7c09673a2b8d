#include "nibble/recipes/evaluation/multiple_choice.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <initializer_list>

#include "nibble/core/base/error.h"
#include "nibble/core/data/records/json_record.h"
#include "nibble/core/models/nonfinite.h"

namespace nibble {

namespace {

const Json& field(const Json& record, std::initializer_list<const char*> names, const std::string& place) {
  std::string listed;
  for (const char* name : names) {
    if (const auto found = record.find(name); found != record.end() && !found->is_null()) return *found;
    listed += (listed.empty() ? "\"" : ", \"") + std::string(name) + "\"";
  }
  throw InputError(place, "has none of the fields " + listed, "a question has a prompt, choices and an answer");
}

std::vector<std::string> texts(const Json& value, const std::string& place) {
  std::vector<std::string> found;
  if (!value.is_array()) throw InputError(place, "choices are no list", "write \"choices\": [\"...\", \"...\"]");
  for (const Json& choice : value) {
    if (!choice.is_string()) throw InputError(place, "a choice is no text", "write \"choices\": [\"...\", \"...\"]");
    found.push_back(choice.get<std::string>());
  }
  if (found.size() < 2) throw InputError(place, "has fewer than two choices", "give at least two");
  return found;
}

size_t answer_of(const Json& value, const ChoiceQuestion& question, const std::vector<std::string>& labels) {
  if (value.is_number_integer() && value.get<int64_t>() >= 0 && value.get<uint64_t>() < question.choices.size()) {
    return value.get<size_t>();
  }
  if (value.is_string()) {
    const std::string text = value.get<std::string>();
    for (const auto* names : {&labels, &question.choices}) {
      const auto at = std::find(names->begin(), names->end(), text);
      if (at != names->end()) return static_cast<size_t>(at - names->begin());
    }
    if (text.size() == 1) {
      const unsigned char letter = static_cast<unsigned char>(std::toupper(static_cast<unsigned char>(text[0])));
      const size_t index = letter >= 'A' ? letter - size_t{'A'} : letter - size_t{'0'};
      if (index < question.choices.size()) return index;
    }
  }
  throw InputError(question.place, "answer " + value.dump() + " is none of the choices",
                   "give its index from 0, its letter, or its text");
}

ChoiceQuestion question_of(const Json& record, const std::string& place) {
  if (!record.is_object()) throw InputError(place, "is no JSON object", "write one question a line");
  ChoiceQuestion question;
  question.place = place;
  const Json& prompt = field(record, {"question", "prompt", "query", "ctx"}, place);
  if (!prompt.is_string()) throw InputError(place, "the question is no text", "write it as a string");
  question.prompt = prompt.get<std::string>();
  const Json& given = field(record, {"choices", "options", "endings"}, place);
  const Json choices = given.is_string() ? parse_embedded_json(given.get<std::string>()) : given;
  std::vector<std::string> labels;
  if (choices.is_object()) {
    question.choices = texts(field(choices, {"text"}, place), place);
    if (choices.contains("label")) labels = texts(choices["label"], place);
  } else {
    question.choices = texts(choices, place);
  }
  question.answer = answer_of(field(record, {"answer", "label", "gold", "answerKey"}, place), question, labels);
  return question;
}

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t'; }

}  // namespace

std::vector<ChoiceQuestion> read_choice_questions(const std::vector<DataSource>& sources) {
  std::vector<ChoiceQuestion> questions;
  for (const DataFile& file : find_data_files(sources, DataSplit::eval)) {
    const size_t before = questions.size();
    RecordReader reader(file.path);
    if (reader.is_text()) throw InputError(file.path, "holds texts, no questions", "give a .jsonl, or one of tables");
    for (RawRecord raw; reader.next(raw);) {
      questions.push_back(question_of(parse_record(file.path, raw), record_place(file.path, raw)));
    }
    if (questions.size() == before) throw InputError(file.path, "holds no question", "write one JSON object a line");
  }
  return questions;
}

ChoiceAccuracy multiple_choice(Decoder& model, const Tokenizer& tokenizer, const std::vector<ChoiceQuestion>& questions,
                               int64_t limit, const StepContext& step) {
  ChoiceAccuracy result;
  for (const ChoiceQuestion& question : questions) {
    if (limit > 0 && result.asked >= limit) break;
    // Blanks at the end of the prompt begin the choices, as tokens have them, and nothing ends a text.
    const size_t end = question.prompt.find_last_not_of(" \n\t\r") + 1;  // npos + 1 is 0
    const std::string asked = question.prompt.substr(0, end), blanks = question.prompt.substr(end);
    const std::vector<int32_t> prefix = tokenizer.prefix_ids();
    const size_t prompt = prefix.size() + tokenizer.encode(asked, false).size();
    std::vector<double> sums, means;
    for (const std::string& choice : question.choices) {
      const bool spaced =
          question.prompt.empty() || is_space(question.prompt.back()) || (!choice.empty() && is_space(choice.front()));
      const std::vector<int32_t> ids = tokenizer.encode(asked + blanks + (spaced ? "" : " ") + choice, false);
      Sample sample{.ids = prefix};
      sample.ids.insert(sample.ids.end(), ids.begin(), ids.end());
      sample.labels = sample.ids;
      if (sample.ids.size() <= prompt) {
        throw InputError(question.place, "choice \"" + choice + "\" gives no token of its own", "give it a text");
      }
      std::fill_n(sample.labels.begin(), prompt, kIgnoreLabel);
      const double loss = model.loss_sum(make_batch({&sample, 1}, step.pool()), step);
      if (!std::isfinite(loss)) throw_nonfinite(question.place + ": log-probability of a choice", model);
      sums.push_back(loss);
      means.push_back(loss / static_cast<double>(std::max<size_t>(1, choice.size())));
    }
    const auto likeliest = [](const std::vector<double>& losses) {
      return static_cast<size_t>(std::min_element(losses.begin(), losses.end()) - losses.begin());
    };
    ++result.asked;
    result.right += likeliest(sums) == question.answer;
    result.right_normalized += likeliest(means) == question.answer;
  }
  return result;
}

}  // namespace nibble
