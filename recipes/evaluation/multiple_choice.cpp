#include "nibble/recipes/evaluation/multiple_choice.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/models/nonfinite.h"

namespace nibble {

namespace {

using nlohmann::json;

constexpr size_t kLargestFile = size_t{1} << 30;

const json& field(const json& record, std::initializer_list<const char*> names, const std::string& place) {
  std::string listed;
  for (const char* name : names) {
    if (record.contains(name)) return record[name];
    listed += (listed.empty() ? "\"" : ", \"") + std::string(name) + "\"";
  }
  throw InputError(place, "has none of the fields " + listed, "a question has a prompt, choices and an answer");
}

std::vector<std::string> texts(const json& value, const std::string& place) {
  std::vector<std::string> found;
  if (!value.is_array()) throw InputError(place, "choices are no list", "write \"choices\": [\"...\", \"...\"]");
  for (const json& choice : value) {
    if (!choice.is_string()) throw InputError(place, "a choice is no text", "write \"choices\": [\"...\", \"...\"]");
    found.push_back(choice.get<std::string>());
  }
  if (found.size() < 2) throw InputError(place, "has fewer than two choices", "give at least two");
  return found;
}

size_t answer_of(const json& value, const ChoiceQuestion& question, const std::vector<std::string>& labels) {
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

ChoiceQuestion question_of(const json& record, const std::string& place) {
  if (!record.is_object()) throw InputError(place, "is no JSON object", "write one question a line");
  ChoiceQuestion question;
  question.place = place;
  const json& prompt = field(record, {"question", "prompt", "query", "ctx"}, place);
  if (!prompt.is_string()) throw InputError(place, "the question is no text", "write it as a string");
  question.prompt = prompt.get<std::string>();
  const json& choices = field(record, {"choices", "options", "endings"}, place);
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

std::vector<ChoiceQuestion> read_choice_questions(const std::filesystem::path& file) {
  const std::string text = read_text_file(file, kLargestFile);
  std::vector<ChoiceQuestion> questions;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (std::all_of(line.begin(), line.end(), [](char c) { return is_space(c) || c == '\r'; })) continue;
    const std::string place = file.string() + ":" + std::to_string(number);
    questions.push_back(question_of(parse_json(line, place), place));
  }
  if (questions.empty()) throw InputError(file.string(), "holds no question", "write one JSON object a line");
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
