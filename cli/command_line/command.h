#pragma once
// What a command says of itself: its flags, its help, and what runs. A thin face of CLI11, whose header costs more to
// compile than the commands together; only command.cpp and main.cpp include it.

#include <functional>
#include <string>
#include <vector>

#include "nibble/core/io/files/atomic_file.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace nibble::cli {

/// The most threads that may be asked for.
inline constexpr int kMostThreads = 4096;

/// A flag or a positional argument of a command. A value that breaks a rule ends the program with a usage error that
/// names the flag and the rule.
class Argument {
 public:
  explicit Argument(CLI::Option* option) : option_(option) {}

  Argument& required();
  Argument& not_empty();
  Argument& one_of(const std::vector<std::string>& values);
  Argument& at_least(double least);
  Argument& between(double least, double most);
  /// --help shows the value that the target has now.
  Argument& shows_default();
  /// A list may be written as a,b,c.
  Argument& comma_separated();
  /// The flag may stand alone; --help calls its value `name`.
  Argument& value_optional(const std::string& name);

  /// Whether the command line has it. Valid once the command runs.
  bool given() const;
  /// As it is given: "--name".
  std::string name() const;

 private:
  friend class Command;
  CLI::Option* option_;
};

/// Throws UsageError "--name WHERE; REMEDY" where the command line has one of `arguments`, which nothing would look at.
/// Valid once the command runs.
void refuse_given(const std::vector<Argument>& arguments, const std::string& where, const std::string& remedy);

/// One command (`nibble train`) or a group of commands (`nibble recipes`). Targets of options must live until the
/// command has run: what they belong to is shared with the function given to run().
class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}

  Command subcommand(const std::string& name, const std::string& about);
  /// --help lists the command under this heading instead of among the others.
  void group(const std::string& heading);
  /// One of the subcommands must be given.
  void require_subcommand();

  /// `name` is "--flag" or, for a positional argument, "name". T: std::string, int, int64_t, uint64_t, float, double,
  /// std::vector<std::string>, std::vector<int64_t>, std::vector<double>.
  template <typename T>
  Argument option(const std::string& name, T& target, const std::string& help);
  /// Calls `take` with the value while the command line is read; `take` may throw nibble's errors.
  Argument option(const std::string& name, const std::function<void(const std::string&)>& take,
                  const std::string& help);
  /// "--flag", or "--flag,!--no-flag" for a pair.
  Argument flag(const std::string& name, bool& target, const std::string& help);

  /// --force replaces what nibble wrote itself (`own`, for the help: "a directory that nibble wrote"), --force=anything
  /// whatever is there.
  Argument force_flag(Replace& target, const std::string& own);

  /// Exactly one of them must be given.
  void exactly_one_of(const std::vector<Argument>& arguments);
  /// The first argument that the command line has and `allowed` has not; "" where there is none. Valid once the command
  /// runs.
  std::string given_besides(const std::vector<Argument>& allowed) const;

  /// Text under the flags in --help; by custom it ends with "Example: nibble ...".
  void footer(const std::string& text);
  void run(std::function<void()> body);

 private:
  CLI::App* app_;
};

}  // namespace nibble::cli
