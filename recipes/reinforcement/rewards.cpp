#include "nibble/recipes/reinforcement/rewards.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "nibble/core/base/error.h"
#include "nibble/core/data/records/json_record.h"
#include "nibble/core/io/processes/child_process.h"
#include "nibble/recipes/evaluation/answer.h"

namespace nibble {

namespace {

std::string trimmed(const std::string& text) {
  constexpr const char* kBlank = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlank), end = text.find_last_not_of(kBlank);
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

const char* type_name(RewardRecipe::Type type) {
  constexpr const char* kNames[] = {"exact", "number", "regex", "length", "repetition", "command", "model"};
  return kNames[static_cast<size_t>(type)];
}

PythonRegex parse_pattern(const std::string& pattern, const std::string& place) {
  try {
    return PythonRegex(pattern);
  } catch (const UsageError& error) {
    throw InputError(place, error.what(), "write it as Python's re takes it");
  }
}

// With all digits, of which an exponent would hide some.
std::string without_exponent(const Json& value) {
  if (!value.is_number_float()) return json_text(value);
  char digits[512];  // 1e308 and 5e-324 have fewer
  return {digits, std::to_chars(digits, digits + sizeof digits, value.get<double>(), std::chars_format::fixed).ptr};
}

std::string line_of(const JudgedAnswer& answer) {
  Json line = Json::object();
  if (answer.record) line = parse_embedded_json(answer.record->raw.text);
  if (!line.is_object()) line = Json::object();
  line["prompt_text"] = answer.prompt;
  line["completion"] = answer.answer;
  line["completion_ids"] = std::vector<int32_t>(answer.ids.begin(), answer.ids.end());
  return json_text(line, true);
}

}  // namespace

double exact_reward(const std::string& answer, const std::string& expected) {
  return trimmed(answer) == trimmed(expected) ? 1 : 0;
}

double number_reward(const std::string& answer, const std::string& expected) {
  const std::optional<std::string> output = last_number(answer), right = last_number(expected);
  if (!output || !right) return 0;
  const double a = std::strtod(output->c_str(), nullptr), b = std::strtod(right->c_str(), nullptr);
  return output == right || (a == b && std::isfinite(a)) ? 1 : 0;
}

double length_reward(int64_t tokens, int64_t max_completion_len, int64_t soft_punish_cache) {
  const int64_t over = tokens - (max_completion_len - soft_punish_cache);
  if (over <= 0) return 0;
  return tokens > max_completion_len ? -1 : -static_cast<double>(over) / static_cast<double>(soft_punish_cache);
}

double repetition_reward(const std::string& answer, int64_t ngram_size, double max_penalty) {
  std::vector<std::string> words;
  std::istringstream stream(answer);
  for (std::string word; stream >> word;) {
    std::ranges::transform(word, word.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    words.push_back(word);
  }
  const auto size = static_cast<size_t>(ngram_size);
  if (words.size() < size) return 0;
  std::set<std::vector<std::string>> different;
  const size_t count = words.size() - size + 1;
  for (size_t i = 0; i < count; ++i) {
    const auto begin = words.begin() + static_cast<ptrdiff_t>(i);
    different.emplace(begin, begin + ngram_size);
  }
  return (1 - static_cast<double>(different.size()) / static_cast<double>(count)) * max_penalty;
}

Rewards::Rewards(const Recipe& of) : recipes_(of.all_rewards()), fields_(of.data.fields) {
  for (const RewardRecipe& recipe : recipes_) {
    std::string name = recipe.name.empty() ? type_name(recipe.type) : recipe.name;
    const std::string plain = name;
    for (int i = 2; std::ranges::count(names_, name) > 0; ++i) name = plain + "_" + std::to_string(i);
    names_.push_back(name);
    const bool command = recipe.type == RewardRecipe::Type::command, regex = recipe.type == RewardRecipe::Type::regex;
    commands_.push_back(command ? std::make_unique<CommandReward>(recipe, place(commands_.size())) : nullptr);
    const bool model = recipe.type == RewardRecipe::Type::model;
    models_.push_back(model ? std::make_unique<ModelReward>(recipe, of.model, reward_key(of, models_.size()))
                            : nullptr);
    patterns_.emplace_back();
    if (regex) patterns_.back() = parse_pattern(recipe.pattern, place(patterns_.size() - 1));
  }
}

Rewards::~Rewards() = default;

std::string Rewards::column(const PromptRecord& of, size_t i) const {
  const std::string& name = recipes_[i].column;
  const JsonRecord record(*of.path, of.raw, fields_);
  const Json* value = record.find(name);
  if (value == nullptr) {
    record.fail("has no field \"" + record.file_name(name) + "\" for " + place(i),
                "the record has " + record.field_names() + "; give the field to every prompt, or name another column");
  }
  const bool number = recipes_[i].type == RewardRecipe::Type::number;
  std::string text = value->is_string() ? value->get<std::string>()
                     : number           ? without_exponent(*value)
                                        : json_text(*value);
  if (number && !last_number(text)) {
    record.fail(
        "has no number in \"" + record.file_name(name) + "\" for " + place(i) + ": " + json_text(*value).substr(0, 80),
        "give every prompt a number there, or take another column or reward, such as exact");
  }
  return text;
}

void Rewards::check(const PromptRecord& record) const {
  for (size_t i = 0; i < size(); ++i) {
    if (!recipes_[i].column.empty()) column(record, i);
  }
}

void Rewards::try_judges() const {
  for (size_t i = 0; i < size(); ++i) {
    if (models_[i]) models_[i]->try_out();
    if (commands_[i] && !is_program(recipes_[i].argv.front())) {
      throw IoError(place(i), recipes_[i].argv.front() + " cannot be started", "check argv of this reward");
    }
  }
}

std::vector<std::vector<double>> Rewards::score(const std::vector<JudgedAnswer>& answers,
                                                const std::function<bool(size_t, size_t)>& stop) {
  const auto judges = [&](size_t i) { return models_[i] || commands_[i]; };
  size_t before = 0, of = 0;  // scores of commands and models
  for (size_t i = 0; i < size(); ++i) of += judges(i) ? answers.size() : 0;
  const auto stop_here = [&](size_t scored) { return stop(before + scored, of); };
  std::vector<std::vector<double>> scores;
  for (size_t i = 0; i < size(); ++i) {
    if (models_[i]) {
      std::vector<std::vector<int32_t>> texts;
      for (const JudgedAnswer& answer : answers) {
        texts.emplace_back(answer.prompt_ids.begin(), answer.prompt_ids.end());
        texts.back().insert(texts.back().end(), answer.ids.begin(), answer.ids.end());
      }
      scores.push_back(models_[i]->score(texts, stop_here));
    } else if (commands_[i]) {
      std::vector<std::string> lines;
      for (const JudgedAnswer& answer : answers) lines.push_back(line_of(answer));
      scores.push_back(commands_[i]->score(lines, stop_here));
    } else {
      scores.push_back(plain_scores(answers, i));
    }
    if (scores.back().size() < answers.size()) return {};
    if (judges(i)) before += answers.size();
  }
  return scores;
}

std::string Rewards::failure() const {
  const auto failed = std::ranges::find_if(commands_, [](const auto& one) { return one && !one->failure().empty(); });
  return failed == commands_.end() ? "" : (*failed)->failure();
}

std::vector<double> Rewards::plain_scores(const std::vector<JudgedAnswer>& answers, size_t i) const {
  const RewardRecipe& recipe = recipes_[i];
  std::vector<double> own;
  for (const JudgedAnswer& answer : answers) {
    switch (recipe.type) {
      case RewardRecipe::Type::exact:
        own.push_back(exact_reward(answer.answer, column(*answer.record, i)));
        break;
      case RewardRecipe::Type::number:
        own.push_back(number_reward(answer.answer, column(*answer.record, i)));
        break;
      case RewardRecipe::Type::regex:
        own.push_back(patterns_[i]->matches_within(answer.answer) ? 1 : 0);
        break;
      case RewardRecipe::Type::length:
        own.push_back(length_reward(std::ssize(answer.ids), recipe.max_completion_len, recipe.soft_punish_cache));
        break;
      case RewardRecipe::Type::repetition:
        own.push_back(repetition_reward(answer.answer, recipe.ngram_size, recipe.max_penalty));
        break;
      case RewardRecipe::Type::command:
      case RewardRecipe::Type::model:
        NIBBLE_CHECK(false, "a reward of its own");
    }
  }
  return own;
}

}  // namespace nibble
