#include "nibble/cli/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>

#include "nibble/recipes/report/report.h"

namespace nibble::cli {

namespace {

constexpr double kTerminalSeconds = 0.1;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

template <typename... Values>
std::string format(const char* pattern, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

size_t terminal_columns(std::FILE* stream) {
  winsize size{};
  if (ioctl(fileno(stream), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace

std::string progress_line(const StepReport& report, const Progress& progress) {
  std::string line =
      format("step %lld/%lld  loss %.4f (%.4f)  lr %.2e  norm %.3g  %.0f tok/s  ", static_cast<long long>(report.step),
             static_cast<long long>(report.total_steps), report.loss, progress.smoothed_loss(), report.lr,
             report.grad_norm, progress.tokens_per_second());
  if (progress.share_of_peak() > 0) line += format("(%.0f%% of peak)  ", 100 * progress.share_of_peak());
  line += readable_bytes(report.peak_memory_bytes);
  if (report.step < report.total_steps) line += "  left " + readable_seconds(progress.seconds_left());
  return line;
}

ProgressPrinter::ProgressPrinter(std::FILE* stream, double plain_seconds)
    : stream_(stream), terminal_(isatty(fileno(stream)) == 1), plain_seconds_(plain_seconds) {}

ProgressPrinter::~ProgressPrinter() {
  if (refreshing_) std::fputc('\n', stream_);
}

Observer ProgressPrinter::observer() {
  Observer observer;
  observer.on_start = [this](int64_t done, int64_t total) { start(done, total); };
  observer.on_step = [this](const StepReport& report) { step(report); };
  observer.on_evaluation = [this](const EvaluationReport& report) { evaluation(report); };
  observer.on_sample = [this](const SampleReport& report) { sample(report); };
  observer.on_checkpoint = [this](int64_t, const std::string& path) { print_line("saved " + path); };
  observer.on_message = [this](const std::string& line) { print_line(line); };
  return observer;
}

void ProgressPrinter::start(int64_t step, int64_t total_steps) {
  const std::string total = std::to_string(total_steps);
  if (step == 0) {
    print_line("training " + total + " steps");
  } else {
    print_line("continuing after step " + std::to_string(step) + " of " + total);
  }
}

void ProgressPrinter::step(const StepReport& report) {
  progress_.add(report);
  const bool first = last_shown_ < 0, last = report.step == report.total_steps;
  const double time = now();
  if (!first && !last && time - last_shown_ < (terminal_ ? kTerminalSeconds : plain_seconds_)) return;
  last_shown_ = time;
  const std::string line = progress_line(report, progress_);
  if (!terminal_) {
    print_line(line);
    return;
  }
  // Back to the start, the line cut to the terminal (a wrapped line could not be renewed), the rest erased.
  const std::string shown = line.substr(0, terminal_columns(stream_) - 1);
  std::fprintf(stream_, "\r%s\x1b[K", shown.c_str());
  std::fflush(stream_);
  refreshing_ = true;
}

void ProgressPrinter::evaluation(const EvaluationReport& report) {
  print_line(format("step %lld  evaluation loss %.4f  perplexity %.4g  %lld label tokens%s",
                    static_cast<long long>(report.step), report.loss, report.perplexity,
                    static_cast<long long>(report.label_tokens), report.best ? "  (best)" : ""));
}

// The end of the prompt and the answer, each on one line.
void ProgressPrinter::sample(const SampleReport& report) {
  constexpr size_t kPromptEnd = 60;
  std::string prompt = report.prompt;
  if (prompt.size() > kPromptEnd) {
    size_t begin = prompt.size() - kPromptEnd;
    while (begin < prompt.size() && (prompt[begin] & 0xc0) == 0x80) ++begin;  // not inside a character
    prompt = "..." + prompt.substr(begin);
  }
  std::string line = "sample: " + prompt + " -> " + report.text;
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';  // newlines, and what would steer the terminal
  }
  print_line(line);
}

void ProgressPrinter::print_line(const std::string& line) {
  if (refreshing_) std::fputc('\n', stream_);
  refreshing_ = false;
  std::fprintf(stream_, "%s\n", line.c_str());
  std::fflush(stream_);
}

}  // namespace nibble::cli
