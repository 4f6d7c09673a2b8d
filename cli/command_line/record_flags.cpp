#include "nibble/cli/command_line/record_flags.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "nibble/cli/printing/say.h"
#include "nibble/core/base/error.h"
#include "nibble/recipes/evaluation/text_lengths.h"

namespace nibble::cli {

void add_record_flags(Command& command, DataOptions& options) {
  options.max_dropped = 1;  // nothing is trained
  command.option(
      "--fields",
      [&options](const std::string& given) {
        for (size_t begin = 0; begin <= given.size();) {
          const auto comma_behind = [&](size_t at) { return std::min(given.find(',', at), given.size()); };
          size_t end = comma_behind(begin);
          // A comma with no = before the next one belongs to the column: answer=My Answer, final
          while (end < given.size() && given.find('=', end) >= comma_behind(end + 1)) end = comma_behind(end + 1);
          const std::string pair = given.substr(begin, end - begin);
          const size_t equals = pair.find('=');
          if (equals == 0 || equals >= pair.size() - 1) {
            throw UsageError("--fields " + given + " is no list of NAME=COLUMN",
                             "write prompt=question,completion=answer");
          }
          options.fields[pair.substr(0, equals)] = pair.substr(equals + 1);
          begin = end + 1;
        }
      },
      "What the files call the fields of a format: prompt=question,completion=answer (data.fields of a recipe)");
  command.option("--template", options.chat_template,
                 "Chat template: a built-in name or a .jinja file (the adapter's, else the model's own)");
  command
      .option(
          "--hidden-parts",
          [&options](const std::string& given) {
            options.hidden_parts = given == "drop" ? HiddenParts::drop : HiddenParts::error;
          },
          "Reasoning, tools and the like that the text does not show: error (default), or drop them")
      .one_of({"drop", "error"});
}

std::function<void(const Dataset&)> length_check(const DecoderConfig& model) {
  return [&model](const Dataset& texts) {
    check_text_lengths(texts, model, texts.report().longest, "shorten it",
                       [](const std::string& line) { say(stderr, line); });
  };
}

bool has_numbers_of_records(const std::filesystem::path& file) {
  constexpr std::array<std::string_view, 7> kNames = {
      "score", "chosen", "rejected", "completion", "chosen_tokens", "rejected_tokens", "completion_tokens"};
  constexpr size_t kLongestLine = size_t{1} << 22;
  std::string line(kLongestLine, '\0');
  std::ifstream stream(file, std::ios::binary);
  if (!stream.getline(line.data(), kLongestLine)) return false;
  const nlohmann::json record = nlohmann::json::parse(line.c_str(), nullptr, false);
  const auto is_number = [](const nlohmann::json& value) { return value.is_number() || value.is_null(); };
  return record.is_object() && !record.empty() && std::ranges::all_of(record.items(), [&](const auto& field) {
           const nlohmann::json& value = field.value();
           const bool numbers = value.is_array() ? std::ranges::all_of(value, is_number) : is_number(value);
           return numbers && std::ranges::count(kNames, field.key()) > 0;
         });
}

}  // namespace nibble::cli
