#include "nibble/cli/printing/progress.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <sstream>
#include <utility>
#include <vector>

#include "nibble/cli/printing/say.h"
#include "nibble/cli/printing/wrap.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/train/telemetry/headline.h"

namespace nibble::cli {

namespace {

constexpr double kTerminalSeconds = 0.1;

// The words of each line, one blank apart; "(blank)" where there are none before an ellipsis or the end.
std::string in_one_line(const std::string& text) {
  std::string output;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    const char* between = " | ";
    for (std::string word; words >> word; between = " ") output += (output.empty() ? "" : between) + word;
  }
  return (output.empty() || output == "\u2026" ? "(blank)" : "") + output;
}

}  // namespace

std::string progress_line(const StepReport& report, const Progress& progress, size_t columns) {
  struct Part {
    std::string text;
    int leaves;  // the order in which parts make room where the line is too long; 0: never
    const char* gap = "  ";
  };
  std::vector<Part> parts = {
      {formatted("step %lld/%lld", static_cast<long long>(report.step), static_cast<long long>(report.total_steps)), 0},
      {"loss " + loss_text(report.loss), 8},
      {"(" + loss_text(progress.smoothed_loss()) + ")", 7, " "}};
  for (const auto& [name, value] : headline(report.metrics)) {
    parts.push_back({name + " " + headline_text(name, value), 6});
  }
  parts.insert(parts.end(), {{formatted("lr %.2e", report.lr), 2},
                             {formatted("norm %.3g", report.grad_norm), 4},
                             {grouped_text(std::llround(progress.tokens_per_second())) + " tok/s", 5}});
  if (progress.share_of_peak() > 0) parts.push_back({formatted("%.0f%% of peak", 100 * progress.share_of_peak()), 1});
  parts.push_back({bytes_text(static_cast<double>(report.peak_memory_bytes)), 3});
  if (report.step < report.total_steps) parts.push_back({"left " + seconds_text(progress.seconds_left()), 9});
  const auto line = [&] {
    std::string text;
    for (const Part& part : parts) text += (text.empty() ? "" : part.gap) + part.text;
    return text;
  };
  for (int next = 1; next <= 9 && line().size() > columns; ++next) {
    std::erase_if(parts, [&](const Part& part) { return part.leaves == next; });
  }
  return line();
}

ProgressPrinter::ProgressPrinter(std::FILE* stream, double plain_seconds, std::function<double()> clock)
    : stream_(stream), terminal_(isatty(fileno(stream)) == 1), plain_seconds_(plain_seconds), now_(std::move(clock)) {}

double ProgressPrinter::steady_clock() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ProgressPrinter::~ProgressPrinter() { leave_line(); }

void ProgressPrinter::go_through_launch(size_t columns) {
  terminal_ = terminal_ || columns > 0;
  launch_columns_ = columns;
}

Observer ProgressPrinter::observer() {
  Observer observer;
  observer.on_start = [this](int64_t done, int64_t total) { start(done, total); };
  observer.on_step = [this](const StepReport& report) { step(report); };
  observer.on_work = [this](const WorkProgress& progress) { work(progress); };
  observer.on_evaluations_ahead = [this](int64_t tokens) { progress_.expect_evaluations(static_cast<double>(tokens)); };
  observer.on_evaluation = [this](const EvaluationReport& report) { evaluation(report); };
  observer.on_sample = [this](const SampleReport& report) { sample(report); };
  observer.on_checkpoint = [this](int64_t, const std::string& path) { print_line("saved " + path); };
  observer.on_message = [this](const std::string& line) { print_line(line); };
  return observer;
}

void ProgressPrinter::start(int64_t step, int64_t total_steps) {
  const std::string total = std::to_string(total_steps);
  if (step == 0) {
    print_line("training " + count_text(total_steps, "step"));
  } else {
    print_line("continuing after step " + std::to_string(step) + " of " + total);
  }
}

void ProgressPrinter::step(const StepReport& report) {
  progress_.add(report, now_());
  const bool first = step_shown_ < 0, last = report.step == report.total_steps;
  if (!counting_ && !is_due(step_shown_) && !first && !last) return;
  step_shown_ = now_();
  renew_line([&](size_t columns) { return progress_line(report, progress_, columns); });
}

void ProgressPrinter::work(const WorkProgress& progress) {
  const bool in_run = progress.step > 0;
  const std::string step = in_run ? "step " + std::to_string(progress.step) + "  " : "";
  counted(step + progress.what, progress.done, progress.of, in_run);
}

void ProgressPrinter::counted(const std::string& what, int64_t done, int64_t of, bool within) {
  if (done == 0) counted_since_ = now_();
  // In a file a short one is no line at all.
  if (terminal_ ? !is_due(last_shown_) && done > 0 : !is_due(std::max(last_shown_, counted_since_))) return;
  const std::string line = what + formatted(" %lld/%lld", static_cast<long long>(done), static_cast<long long>(of));
  std::string left;
  if (done > 0) {
    const double share = static_cast<double>(of - done) / static_cast<double>(done);
    const std::string seconds = seconds_text(share * (now_() - counted_since_));
    left = within ? "  " + seconds + " more" : "  left " + seconds;
  }
  renew_line([&](size_t columns) { return line.size() + left.size() > columns ? line : line + left; });
  counting_ = refreshing_;
}

bool ProgressPrinter::is_due(double shown) const {
  return now_() - shown >= (terminal_ ? kTerminalSeconds : plain_seconds_);
}

void ProgressPrinter::renew_line(const std::function<std::string(size_t)>& line) {
  last_shown_ = now_();
  if (!terminal_) return print_line(line(1000));
  // What fits into the terminal: a wrapped line could not be renewed.
  const size_t columns = (launch_columns_ > 0 ? launch_columns_ : terminal_columns(stream_)) - 1;
  put_renewed(line(columns).substr(0, columns));
  refreshing_ = true;
  counting_ = false;
}

// Back to the start, the text, the rest erased.
void ProgressPrinter::put_renewed(const std::string& text) {
  std::fprintf(stream_, launch_columns_ > 0 ? "%s\r" : "\r%s\x1b[K", text.c_str());
  std::fflush(stream_);
}

void ProgressPrinter::leave_line() {
  if (refreshing_) counting_ ? put_renewed("") : void(std::fputs("\n", stream_));
  refreshing_ = counting_ = false;
}

void ProgressPrinter::evaluation(const EvaluationReport& report) {
  progress_.add(report);
  std::string line =
      formatted("step %lld  evaluation loss ", static_cast<long long>(report.step)) + loss_text(report.loss);
  const bool of_tokens = !std::isnan(report.perplexity);  // others count pairs or texts
  if (of_tokens) line += "  perplexity " + perplexity_text(report.perplexity);
  for (const auto& [name, value] : headline(report.metrics)) line += "  " + name + " " + headline_text(name, value);
  if (of_tokens) line += "  " + count_text(report.label_tokens, "label token");
  print_line(line + (report.best ? "  (best)" : ""));
}

void ProgressPrinter::sample(const SampleReport& report) {
  constexpr size_t kPromptEnd = 60;
  std::string prompt = in_one_line(report.prompt);
  if (prompt.size() > kPromptEnd) {
    size_t begin = prompt.size() - kPromptEnd;
    if (const size_t blank = prompt.find(' ', begin - 1); blank != std::string::npos) begin = blank + 1;
    while (begin < prompt.size() && (prompt[begin] & 0xc0) == 0x80) ++begin;  // not inside a character
    prompt = "... " + prompt.substr(begin);
  }
  print_line("sample: " + prompt + " -> " + in_one_line(report.text));
}

void ProgressPrinter::print_line(const std::string& line) {
  leave_line();
  say(stream_, line);
  std::fflush(stream_);
}

}  // namespace nibble::cli
