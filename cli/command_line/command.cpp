#include "nibble/cli/command_line/command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <limits>
#include <type_traits>

#include "nibble/core/base/error.h"

namespace nibble::cli {

namespace {

std::string written(double number) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof text, number).ptr);
}

// Empty when `value` is a number that keeps the rule, else the rule.
std::string check_number(const std::string& value, double least, double most, const std::string& rule) {
  double number = 0;
  const bool is_number = CLI::detail::lexical_cast(value, number);
  return is_number && number >= least && number <= most ? std::string() : value + " is not " + rule;
}

// CLI11 takes a number that T does not hold as another one.
template <typename T>
std::string check_whole_number(const std::string& value) {
  T number = 0;
  std::from_chars(value.data(), value.data() + value.size(), number);
  if (std::to_string(number) == value) return "";
  using Limits = std::numeric_limits<T>;
  return value + " is not a whole number from " + std::to_string(Limits::min()) + " to " +
         std::to_string(Limits::max());
}

}  // namespace

Argument& Argument::required() {
  option_->required();
  return *this;
}

Argument& Argument::not_empty() {
  option_->check([](const std::string& value) { return std::string(value.empty() ? "is empty" : ""); });
  return *this;
}

Argument& Argument::one_of(const std::vector<std::string>& values) {
  option_->transform(CLI::IsMember(values, CLI::ignore_case));  // Q8_0 is q8_0
  return *this;
}

Argument& Argument::at_least(double least) {
  const std::string rule = "a number of at least " + written(least);
  option_->check([=](const std::string& value) { return check_number(value, least, HUGE_VAL, rule); });
  return *this;
}

Argument& Argument::between(double least, double most) {
  const std::string rule = "a number from " + written(least) + " to " + written(most);
  option_->check([=](const std::string& value) { return check_number(value, least, most, rule); });
  return *this;
}

Argument& Argument::shows_default() {
  option_->capture_default_str();
  return *this;
}

Argument& Argument::comma_separated() {
  option_->delimiter(',');
  return *this;
}

Argument& Argument::value_optional(const std::string& name) {
  option_->expected(0, 1)->type_name(name);
  return *this;
}

bool Argument::given() const { return option_->count() > 0; }

std::string Argument::name() const { return option_->get_name(); }

void refuse_given(const std::vector<Argument>& arguments, const std::string& where, const std::string& remedy) {
  const auto found = std::ranges::find_if(arguments, &Argument::given);
  if (found != arguments.end()) throw UsageError(found->name() + " " + where, remedy);
}

Command Command::subcommand(const std::string& name, const std::string& about) {
  return Command(app_->add_subcommand(name, about));
}

void Command::group(const std::string& heading) { app_->group(heading); }

void Command::require_subcommand() { app_->require_subcommand(1); }

template <typename T>
Argument Command::option(const std::string& name, T& target, const std::string& help) {
  CLI::Option* option = app_->add_option(name, target, help);
  if constexpr (std::is_integral_v<T>) option->check(check_whole_number<T>);
  return Argument(option);
}

template Argument Command::option(const std::string&, std::string&, const std::string&);
template Argument Command::option(const std::string&, int&, const std::string&);
template Argument Command::option(const std::string&, int64_t&, const std::string&);
template Argument Command::option(const std::string&, uint64_t&, const std::string&);
template Argument Command::option(const std::string&, float&, const std::string&);
template Argument Command::option(const std::string&, double&, const std::string&);
template Argument Command::option(const std::string&, std::vector<std::string>&, const std::string&);
template Argument Command::option(const std::string&, std::vector<int64_t>&, const std::string&);
template Argument Command::option(const std::string&, std::vector<double>&, const std::string&);

Argument Command::option(const std::string& name, const std::function<void(const std::string&)>& take,
                         const std::string& help) {
  return Argument(app_->add_option_function<std::string>(name, take, help));
}

Argument Command::flag(const std::string& name, bool& target, const std::string& help) {
  return Argument(app_->add_flag(name, target, help));
}

Argument Command::force_flag(Replace& target, const std::string& own) {
  const auto word = std::make_shared<std::string>();
  CLI::Option* option = app_->add_flag("--force", *word, "Replace " + own + "; --force=anything: whatever is there");
  option->check(CLI::IsMember({"true", "anything"}))->each([&target, word](const std::string& given) {
    target = given == "anything" ? Replace::anything : Replace::own;
  });
  return Argument(option);
}

void Command::exactly_one_of(const std::vector<Argument>& arguments) {
  CLI::Option_group* group = app_->add_option_group("Input");
  for (const Argument& argument : arguments) group->add_option(argument.option_);
  group->require_option(1);
}

std::string Command::given_besides(const std::vector<Argument>& allowed) const {
  for (const CLI::Option* option : app_->get_options()) {
    const auto is_it = [&](const Argument& argument) { return argument.option_ == option; };
    if (option->count() > 0 && std::ranges::none_of(allowed, is_it)) return option->get_name();
  }
  return "";
}

void Command::footer(const std::string& text) { app_->footer(text); }

void Command::run(std::function<void()> body) { app_->callback(std::move(body)); }

}  // namespace nibble::cli
