// nibble: parse, call, and turn an error into one line and an exit code.

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <iostream>
#include <optional>
#include <sstream>
#include <string_view>

#include "nibble/cli/command_line/manual.h"
#include "nibble/cli/commands.h"
#include "nibble/cli/printing/say.h"
#include "nibble/cli/printing/wrap.h"
#include "nibble/cli/processes/failure.h"
#include "nibble/cli/processes/process_limits.h"
#include "nibble/core/base/error.h"
#include "nibble/core/base/version.h"
#include "nibble/core/formatting/joined.h"
#include "nibble/core/tensor/map_fault.h"
#include "nibble/core/text/matching/nearest.h"
#include "nibble/core/train/run/stop_signal.h"
#include "nibble/parallel/launch.h"

namespace {

// A run is a recipe with keys; who gives the flags of other commands is shown the line to type.
std::string recipe_line(const std::string& command, const std::vector<std::string>& words) {
  constexpr std::array<std::string_view, 4> kTakeRecipes = {"train", "plan", "validate", "preview"};
  constexpr std::array<std::pair<std::string_view, const char*>, 4> kKeys = {{{"--model", "model.path="},
                                                                              {"--data", "data.train="},
                                                                              {"--adapter", "adapter.path="},
                                                                              {"--out", "output.dir="}}};
  if (std::find(kTakeRecipes.begin(), kTakeRecipes.end(), command) == kTakeRecipes.end()) return "";
  std::vector<std::string> keys;
  bool has_output = false;
  for (size_t i = 0; i < words.size(); ++i) {
    const size_t equals = words[i].find('=');
    for (const auto& [flag, key] : kKeys) {
      if (words[i].substr(0, equals) != flag) continue;
      const bool has_value = equals != std::string::npos || i + 1 < words.size();
      keys.push_back(key + (equals != std::string::npos ? words[i].substr(equals + 1)
                            : has_value                 ? words[i + 1]
                                                        : "..."));
      has_output = has_output || flag == "--out";
    }
  }
  if (keys.empty()) return "";
  return "copy a recipe (nibble recipes cp qlora), then: nibble " + command + " qlora.json " +
         nibble::shell_line(keys) + (has_output ? "" : " output.dir=runs/mine");
}

// The one name that begins like `word`, or that `word` begins with: --out for --output.
std::string same_begin(const std::string& word, std::vector<std::string> known) {
  std::erase_if(known, [&](const std::string& name) {
    return !word.starts_with("--") || word.size() < 5 || !(name.starts_with(word) || word.starts_with(name));
  });
  return known.size() == 1 ? known.front() : "";
}

// What was probably meant.
std::string remedy_for(const CLI::App& app, const std::vector<std::string>& words,
                       const std::vector<std::string>& extras) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  if (std::string line = recipe_line(command->get_name(), words); !line.empty()) return line;
  std::vector<std::string> known;
  const auto add_options = [&](const CLI::App* of) {
    for (const CLI::Option* option : of->get_options()) {
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    }
  };
  add_options(command);
  for (const CLI::App* child : command->get_subcommands([](const CLI::App*) { return true; })) {
    // One without a name is a group of options, of which a command takes one.
    child->get_name().empty() ? add_options(child) : known.push_back(child->get_name());
  }
  std::string path;
  for (const CLI::App* a = command; a != nullptr; a = a->get_parent())
    path = a->get_name() + (path.empty() ? "" : " ") + path;
  for (const std::string& extra : extras) {
    const size_t dot = extra.find('.'), equals = extra.find('=');
    if (extra.starts_with("--") && dot < equals && equals != std::string::npos) {
      return "keys of the recipe are given without dashes: " + extra.substr(2);
    }
    const std::string word = extra.substr(0, equals), near = nibble::nearest(word, known);
    const std::string meant = near.empty() ? same_begin(word, known) : near;
    if (!meant.empty()) return "did you mean " + meant + "?";
  }
  return "see " + path + " --help";
}

int usage_error(const CLI::App& app, const std::vector<std::string>& words, const CLI::ParseError& error) {
  std::string what = error.what();
  while (!what.empty() && (what.back() == '\n' || what.back() == '.')) what.pop_back();
  // What is missing is often what was misspelled; CLI11 lists the words backwards.
  const std::vector<std::string> extras = app.remaining(true);
  const std::string remedy = remedy_for(app, words, extras);
  const bool is_missing = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (!extras.empty() && (is_missing || dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr)) {
    const std::string unexpected =
        nibble::joined(extras, " ") + (extras.size() == 1 ? " was not expected" : " were not expected");
    what = is_missing && !remedy.starts_with("did you mean") ? what + ", and " + unexpected : unexpected;
    const bool is_command = !app.get_subcommands().empty() || extras.front().starts_with('-');
    if (!is_command) what = extras.front() + " is no command";
  }
  nibble::cli::say_error(what + "; " + remedy);
  return 2;
}

// The next file opened would take the number of a closed stream and receive its messages: metrics.jsonl, for one.
void open_standard_streams() {
  for (int stream = 0; stream <= 2; ++stream) {
    if (fcntl(stream, F_GETFD) == -1) open("/dev/null", stream == 0 ? O_RDONLY : O_WRONLY);
  }
}

// Throws IoError where what a command said is lost on a full disk. A reader that has left (`| head`) has what it
// wanted.
void require_said() {
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout) return;
  pollfd reader{.fd = STDOUT_FILENO, .events = 0, .revents = 0};
  if (poll(&reader, 1, 0) == 1 && (reader.revents & (POLLERR | POLLHUP)) != 0) return;
  throw nibble::IoError("standard output", "cannot be written", "free space where it goes, or write elsewhere");
}

// These meet signals in ways of their own, and but for the last leave their results in files.
constexpr std::array<std::string_view, 5> kOwnSignals = {"train", "launch", "sweep", "sagemaker-train", "chat"};

}  // namespace

int main(int argc, char** argv) {
  using namespace nibble::cli;
  open_standard_streams();
  nibble::exit_when_a_mapped_file_shrinks();

  CLI::App app("nibble fine-tunes language models: LoRA on 16-bit or 4-bit bases, full fine-tuning, pretraining.",
               "nibble");
  app.set_version_flag("--version", "nibble " + std::string(nibble::version()));
  app.require_subcommand(1);
  app.failure_message([](const CLI::App*, const CLI::Error&) { return std::string(); });
  app.get_formatter()->column_width(34);

  Command program(&app);
  for (AddCommand* add :
       {add_train_command,    add_plan_command,    add_launch_command,   add_validate_command,  add_preview_command,
        add_quantize_command, add_merge_command,   add_combine_command,  add_export_command,    add_import_command,
        add_generate_command, add_chat_command,    add_eval_command,     add_logits_command,    add_gradients_command,
        add_logprobs_command, add_score_command,   add_tokenize_command, add_tokenizer_command, add_template_command,
        add_init_command,     add_inspect_command, add_recipes_command,  add_report_command,    add_compare_command,
        add_sweep_command,    add_doctor_command,  add_sagemaker_command}) {
    add(program);
  }
  add_manual_commands(app);

  try {
    prepare_process();
    std::optional<nibble::StopSignal> stop;  // nothing half-written stays behind
    const auto own = argc > 1 ? std::ranges::find(kOwnSignals, argv[1]) : kOwnSignals.end();
    if (argc > 1 && own == kOwnSignals.end()) {
      stop.emplace(nibble::StopSignal::End::by_signal, nibble::StopPolicy::at_once);
    }
    app.parse(argc, argv);
    if (own == kOwnSignals.end() || *own == kOwnSignals.back()) require_said();
    return 0;
  } catch (const CLI::Success& success) {  // --help, --version
    std::ostringstream text;
    const int code = app.exit(success, text, text);
    std::fputs(wrapped(text.str(), terminal_columns(stdout)).c_str(), stdout);
    return code;
  } catch (const CLI::ParseError& error) {
    return usage_error(app, {argv + 1, argv + argc}, error);
  } catch (const nibble::Interrupted& stopped) {  // as asked
    say(stderr, std::string(stopped.what()));
    return stopped.exit_code();
  } catch (const std::exception& error) {
    const Failure failure = failure_of(error);
    say_error(failure.line);
    return failure.exit_code;
  }
}
