#include "nibble/cli/command_line/manual.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>

#include "nibble/core/base/error.h"
#include "nibble/core/base/version.h"
#include "nibble/core/formatting/joined.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/files/output_guard.h"
#include "nibble/core/io/files/system_error.h"
#include "nibble/recipes/config/recipe.h"
#include "nibble/recipes/config/shipped.h"
#include "nibble/recipes/config/sweep.h"

namespace nibble::cli {

namespace {

using Apps = std::vector<const CLI::App*>;

Apps children(const CLI::App* app) {
  return app->get_subcommands([](const CLI::App* child) { return !child->get_name().empty(); });
}

// Its own options and those of its groups ("exactly one of").
std::vector<const CLI::Option*> options_of(const CLI::App* app) {
  std::vector<const CLI::Option*> options = app->get_options();
  for (const CLI::App* group : app->get_subcommands([](const CLI::App* child) { return child->get_name().empty(); })) {
    for (const CLI::Option* option : group->get_options()) options.push_back(option);
  }
  return options;
}

std::vector<std::string> flags_of(const CLI::App* app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : options_of(app)) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  return flags;
}

// Calls visit("train", app) and visit("recipes ls", app) for all commands.
template <typename Visit>
void for_each_command(const CLI::App* app, const std::string& path, const Visit& visit) {
  for (const CLI::App* child : children(app)) {
    const std::string name = path.empty() ? child->get_name() : path + " " + child->get_name();
    visit(name, child);
    for_each_command(child, name, visit);
  }
}

std::vector<std::string> names_of(const Apps& apps) {
  std::vector<std::string> names;
  for (const CLI::App* app : apps) names.push_back(app->get_name());
  return names;
}

// The words that a key takes, where its description lists words: "auto | block | none".
std::vector<std::string> listed_values(const std::string& values) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin <= values.size();) {
    const size_t end = std::min(values.find(" | ", begin), values.size());
    std::string word = values.substr(begin, end - begin);
    std::erase(word, '"');
    if (word.empty() || word.find(' ') != std::string::npos) return {};
    words.push_back(word);
    begin = end + 3;
  }
  return words.size() > 1 ? words : std::vector<std::string>();
}

bool has_argument(const CLI::App* command, const char* name) { return command->get_option_no_throw(name) != nullptr; }

// The words of Argument::one_of, a blank between: CLI11 writes "TEXT:{nf4,fp4}".
std::string words_of(const CLI::Option* option) {
  const std::string type = option->get_type_name();
  const size_t begin = type.find('{'), end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos) return "";
  std::string words = type.substr(begin + 1, end - begin - 1);
  std::replace(words.begin(), words.end(), ',', ' ');
  return words;
}

std::string bash_completion(const CLI::App& app) {
  std::string commands, cases, keys, short_keys, values, flag_values;
  for_each_command(&app, "", [&](const std::string& path, const CLI::App* command) {
    std::vector<std::string> words = names_of(children(command));
    for (const std::string& flag : flags_of(command)) words.push_back(flag);
    commands += (commands.empty() ? "\"" : "|\"") + path + "\"";
    cases += "    \"" + path + "\") words=\"" + joined(words, " ") + "\"" +
             (has_argument(command, "overrides") ? " takes_keys=$keys"
              : has_argument(command, "axes")    ? " takes_keys=\"$keys $short_keys\""
                                                 : "") +
             " ;;\n";
    for (const CLI::Option* option : options_of(command)) {
      const std::string listed = words_of(option);
      for (const std::string& name : option->get_lnames()) {
        if (!listed.empty())
          flag_values += "    \"" + path + " --" + name + "\") flag=--" + name + " words=\"" + listed + "\" ;;\n";
      }
    }
  });
  std::map<std::string, std::vector<std::string>> by_last_part = keys_by_last_part();
  for (const RecipeKey& key : recipe_keys()) {
    keys += (keys.empty() ? "" : " ") + key.name;
    const std::string last = key.name.substr(key.name.rfind('.') + 1);
    const bool unique = last != key.name && by_last_part[last].size() == 1;
    if (unique) short_keys += (short_keys.empty() ? "" : " ") + last;
    const std::vector<std::string> words = listed_values(key.values);
    if (!words.empty())
      values += "      " + key.name + (unique ? "|" + last : "") + ") words=\"" + joined(words, " ") + "\" ;;\n";
  }
  return "# bash completion of nibble; made by `nibble completion bash`\n"
         "_nibble() {\n"
         "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}\n"
         "  local command= key= flag= prefix= takes_keys= takes_names= next word words=\n"
         "  local keys=\"" +
         keys + "\" short_keys=\"" + short_keys +
         "\"\n"
         "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
         "    case $word in -*|*=*) continue ;; esac\n"
         "    next=${command:+$command }$word\n"
         "    case \"$next\" in\n      " +
         commands +
         ") command=$next ;;\n    esac\n  done\n"
         "  # key=value: bash parts words at =, unless COMP_WORDBREAKS is without it\n"
         "  if [[ $current == = ]]; then\n    key=$previous current=\n"
         "  elif [[ $previous == = ]]; then\n    key=${COMP_WORDS[COMP_CWORD-2]}\n"
         "  elif [[ $current == *=* ]]; then\n    key=${current%%=*} prefix=${current%%=*}= current=${current#*=}\n"
         "  fi\n"
         "  case \"$command ${key:-$previous}\" in\n" +
         flag_values +
         "  esac\n"
         "  if [[ -n $key$flag ]]; then\n"
         "    case $key in\n" +
         values +
         "    esac\n"
         "    if [[ -n $words ]]; then COMPREPLY=($(compgen -P \"$prefix\" -W \"$words\" -- \"$current\"))\n"
         "    else COMPREPLY=($(compgen -P \"$prefix\" -f -- \"$current\")); fi\n"
         "    return\n  fi\n"
         "  case \"$command\" in\n    \"\") words=\"" +
         joined(names_of(children(&app)), " ") + " --help --version\" ;;\n" + cases +
         "  esac\n"
         "  case \"$command\" in \"recipes cat\"|\"recipes cp\") words+=\" " +
         joined(shipped_recipe_names(), " ") +
         "\" takes_names=1 ;; esac\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
         "  [[ -n $takes_names && ${#COMPREPLY[@]} -gt 0 ]] && return  # no files beside them\n"
         "  [[ $current == -* ]] && return\n"
         "  COMPREPLY+=($(compgen -f -- \"$current\"))\n"
         "  [[ -n $takes_keys ]] || return\n"
         "  words=($(compgen -S = -W \"$takes_keys\" -- \"$current\"))\n"
         "  [[ ${#words[@]} -eq 0 ]] && return\n"
         "  COMPREPLY+=(\"${words[@]}\")\n"
         "  compopt -o nospace +o filenames 2>/dev/null  # the value follows; = is not to be escaped\n"
         "}\n"
         "complete -o filenames -F _nibble nibble\n";
}

// zsh runs bash completions.
std::string zsh_completion(const CLI::App& app) {
  return "#compdef nibble\nautoload -U +X bashcompinit && bashcompinit\n" + bash_completion(app);
}

std::string fish_quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("\\'") : std::string(1, c);
  return result + "'";
}

std::string fish_completion(const CLI::App& app) {
  std::string text = "# fish completion of nibble; made by `nibble completion fish`\n";
  for (const CLI::App* command : children(&app)) {
    text += "complete -c nibble -n __fish_use_subcommand -a " + command->get_name() + " -d " +
            fish_quoted(command->get_description()) + "\n";
    const std::string inside = "complete -c nibble -n '__fish_seen_subcommand_from " + command->get_name() + "' ";
    for (const CLI::App* child : children(command)) {
      text += inside + "-a " + child->get_name() + " -d " + fish_quoted(child->get_description()) + "\n";
    }
    for (const CLI::Option* option : options_of(command)) {
      for (const std::string& name : option->get_lnames()) {
        const std::string words = words_of(option);
        text += inside + "-l " + name + (words.empty() ? "" : " -x -a '" + words + "'") + " -d " +
                fish_quoted(option->get_description()) + "\n";
      }
    }
  }
  return text +
         "complete -c nibble -n '__fish_seen_subcommand_from recipes; and __fish_seen_subcommand_from cat cp' -a '" +
         joined(shipped_recipe_names(), " ") + "'\n";
}

// Text as roff: what roff would read as its own is escaped.
std::string roff(const std::string& text) {
  std::string result;
  bool line_start = true;
  for (const char c : text) {
    if (line_start && (c == '.' || c == '\'')) result += "\\&";
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result += c;
    }
    line_start = c == '\n';
  }
  return result;
}

void put_options(std::string& page, const CLI::App* app) {
  for (const CLI::Option* option : options_of(app)) {
    const std::string type = option->get_type_size() == 0 ? "" : " " + option->get_type_name();
    page += ".TP\n.B " + roff(option->get_name(true, true)) + "\n" + roff(option->get_description() + type) + "\n";
  }
}

std::string man_page(const std::string& path, const CLI::App* command) {
  std::string name = "nibble-" + path;
  for (char& c : name) c = c == ' ' ? '-' : c;
  std::string page = ".TH " + name + " 1 \"\" \"nibble " + std::string(version()) + "\"\n.SH NAME\n" + roff(name) +
                     " \\- " + roff(command->get_description()) + "\n.SH SYNOPSIS\n.B nibble " + roff(path) + "\n";
  for (const CLI::Option* option : options_of(command)) {
    if (option->get_positional()) page += roff(option->get_name(true)) + "\n";
  }
  page += "[options]\n.SH OPTIONS\n";
  put_options(page, command);
  for (const CLI::App* child : children(command)) {
    page += ".SS " + roff(child->get_name()) + "\n" + roff(child->get_description()) + "\n";
    put_options(page, child);
  }
  const std::string more = command->get_footer();
  if (!more.empty()) page += ".SH NOTES\n.nf\n" + roff(more) + "\n.fi\n";
  return page +
         ".SH EXIT STATUS\n0 done, 2 usage, 3 bad input, 4 I/O or space, 5 numerics, 70 a defect of nibble, "
         "75 interrupted and resumable, 76 rank lost or hung.\n.SH SEE ALSO\n.BR nibble (1)\n";
}

std::string main_page(const CLI::App& app) {
  std::string page = ".TH nibble 1 \"\" \"nibble " + std::string(version()) + "\"\n.SH NAME\nnibble \\- " +
                     roff(app.get_description()) + "\n.SH SYNOPSIS\n.B nibble\nCOMMAND [options]\n.SH COMMANDS\n";
  for (const CLI::App* command : children(&app)) {
    page += ".TP\n.BR nibble\\-" + roff(command->get_name()) + " (1)\n" + roff(command->get_description()) + "\n";
  }
  return page;
}

void write_man_pages(const CLI::App& app, const std::string& directory) {
  const std::filesystem::path target(directory);
  std::map<std::filesystem::path, std::string> pages = {{target / "nibble.1", main_page(app)}};
  for (const CLI::App* command : children(&app)) {
    pages[target / ("nibble-" + command->get_name() + ".1")] = man_page(command->get_name(), command);
  }
  std::error_code error;
  std::filesystem::create_directories(target, error);
  if (error) throw system_error(directory, "cannot be made", error.value());
  for (const auto& [file, page] : pages) require_own_file(file, begins_with(".TH nibble"), "nibble man");
  for (const auto& [file, page] : pages) write_file_atomically(file, page);
}

}  // namespace

void add_manual_commands(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  CLI::App* completion = app.add_subcommand("completion", "Print what a shell needs to complete commands and flags");
  completion->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  completion->footer("Example: nibble completion bash > /etc/bash_completion.d/nibble");
  completion->callback([&app, shell] {
    const std::string text = *shell == "bash"  ? bash_completion(app)
                             : *shell == "zsh" ? zsh_completion(app)
                                               : fish_completion(app);
    std::fputs(text.c_str(), stdout);
  });
  auto directory = std::make_shared<std::string>();
  CLI::App* man = app.add_subcommand("man", "Write the manual pages");
  man->add_option("--out", *directory, "Directory for nibble.1 and a page for each command")->required();
  man->footer("Example: nibble man --out /usr/local/share/man/man1");
  man->callback([&app, directory] { write_man_pages(app, *directory); });
}

}  // namespace nibble::cli
