#pragma once
// Shows a run: one refreshing line on a terminal, plain lines elsewhere.

#include <cstdio>
#include <functional>
#include <string>

#include "nibble/core/train/telemetry/observer.h"
#include "nibble/core/train/telemetry/progress.h"

namespace nibble::cli {

/// Where a run stands, as one line: step, loss, smoothed loss, headline(), lr, gradient norm, tokens/s, share of the
/// peak, memory, time left. Where that is more than `columns`, what matters least is left out, whole.
std::string progress_line(const StepReport& report, const Progress& progress, size_t columns = 1000);

/// Prints to a stream that nothing else prints to meanwhile. A stream that cannot be written is ignored: a closed
/// terminal does not stop a run.
class ProgressPrinter {
 public:
  /// On a terminal the line is renewed at most ten times a second; elsewhere a line is printed for the first and last
  /// step and then every `plain_seconds`. clock: says the time, in seconds.
  explicit ProgressPrinter(std::FILE* stream, double plain_seconds = 10, std::function<double()> clock = steady_clock);
  ~ProgressPrinter();
  ProgressPrinter(const ProgressPrinter&) = delete;
  ProgressPrinter& operator=(const ProgressPrinter&) = delete;

  /// The stream goes through `nibble launch` to a terminal of so many columns (0: to none), see offer_terminal().
  void go_through_launch(size_t columns);
  /// Calls into this object; it must outlive them.
  Observer observer();
  /// "WHAT 3/40  left 2m 00s", as often as other progress; "2m 00s more" where it is `within` something whose time left
  /// is printed too.
  void counted(const std::string& what, int64_t done, int64_t of, bool within = false);

 private:
  void start(int64_t step, int64_t total_steps);
  void step(const StepReport& report);
  void sample(const SampleReport& report);
  void evaluation(const EvaluationReport& report);
  void work(const WorkProgress& progress);
  static double steady_clock();
  /// Whether it is time for another line of progress when there was one at `shown`.
  bool is_due(double shown) const;
  /// A line that the next one renews on a terminal.
  void renew_line(const std::function<std::string(size_t columns)>& line);
  void put_renewed(const std::string& text);
  /// Goes on below the line that would be renewed, or in the place of one that only counted.
  void leave_line();
  void print_line(const std::string& line);

  std::FILE* stream_;
  bool terminal_;
  size_t launch_columns_ = 0;  // 0: the stream's own terminal
  double plain_seconds_;
  std::function<double()> now_;
  Progress progress_;
  bool refreshing_ = false;  // the cursor stands at the end of a line that will be renewed
  bool counting_ = false;    // that line says how far something is, and nothing once it is done
  double last_shown_ = -1, step_shown_ = -1, counted_since_ = 0;
};

}  // namespace nibble::cli
