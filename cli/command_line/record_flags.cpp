#include "nibble/cli/command_line/record_flags.h"

#include <algorithm>

#include "nibble/core/base/error.h"

namespace nibble::cli {

void add_record_flags(Command& command, DataOptions& options) {
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

}  // namespace nibble::cli
