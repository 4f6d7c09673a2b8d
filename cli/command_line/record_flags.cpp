#include "nibble/cli/command_line/record_flags.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "nibble/cli/printing/say.h"
#include "nibble/core/base/error.h"
#include "nibble/recipes/evaluation/text_lengths.h"

namespace nibble::cli {

namespace {

using Line = nlohmann::ordered_json;

}  // namespace

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

IsOwn has_lines_of(std::vector<std::vector<std::string>> forms) {
  return [forms = std::move(forms)](const std::filesystem::path& file) {
    constexpr size_t kLongestLine = size_t{1} << 22;
    const auto is_number = [](const Line& value) { return value.is_number() || value.is_null(); };
    const auto is_own = [&](const std::string& text) {
      const Line record = Line::parse(text, nullptr, false);
      std::vector<std::string> names;
      for (const auto& [name, value] : record.items()) {
        names.push_back(name);
        if (!(value.is_array() ? std::ranges::all_of(value, is_number) : is_number(value))) return false;
      }
      return record.is_object() && std::ranges::count(forms, names) > 0 && record.dump() == text;
    };
    std::string line(kLongestLine, '\0');
    std::ifstream stream(file, std::ios::binary);
    while (stream.getline(line.data(), kLongestLine)) {
      if (!is_own(line.c_str())) return false;
    }
    return stream.eof();
  };
}

}  // namespace nibble::cli
