#pragma once
// Where the time of one rank goes: named spans, nested, written as a Chrome trace (the "Trace Event Format" that
// Perfetto and chrome://tracing open). An Observer carries a pointer to one, null unless somebody asks for a profile.

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace nibble {

/// What a span's time is spent on.
enum class Phase : uint8_t { other, data, forward, backward, optimizer, communication, io, evaluation };
inline constexpr int kPhases = 8;

std::string_view phase_name(Phase phase);

/// Spans of the thread that made it; those of other threads are not recorded.
class Trace {
 public:
  /// All of the spans with one name.
  struct Total {
    int64_t count = 0;
    double seconds = 0;  ///< without what lies in spans inside
  };

  /// Times count from here on. The first `max_events` spans are kept for the trace, all of them for the totals.
  explicit Trace(int rank = 0, size_t max_events = 200'000);

  /// Inside a span of evaluation everything is evaluation.
  /// Returns its number, from 1; 0 on another thread.
  uint64_t begin(Phase phase, std::string_view name);
  /// Ends that span and what was begun inside it; nothing when it has ended.
  void end(uint64_t span);
  /// The value of a quantity now, drawn as a curve.
  void count(std::string_view name, double value);

  /// Seconds spent in a phase, each moment counted once: for the innermost span.
  double seconds(Phase phase) const { return phase_seconds_[static_cast<size_t>(phase)]; }
  /// Of all phases.
  double seconds() const;
  const std::map<std::pair<Phase, std::string>, Total>& totals() const { return totals_; }
  int rank() const { return rank_; }

  /// {"traceEvents": [...]}: complete events ("X") and counters ("C"), microseconds, the rank as process id.
  std::string chrome_json() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Open {
    uint64_t number;
    Phase phase;
    std::map<std::pair<Phase, std::string>, Total>::iterator total;
    Clock::time_point begin;
    double inside = 0;  // seconds of the spans within
  };
  struct Event {
    const std::pair<Phase, std::string>* what;
    double begin, duration;  // microseconds
  };
  struct Count {
    std::string name;
    double at, value;
  };

  void end_last();

  int rank_;
  size_t max_events_;
  uint64_t begun_ = 0;
  std::thread::id thread_;
  Clock::time_point start_;
  std::vector<Open> open_;
  std::vector<Event> events_;
  std::vector<Count> counts_;
  std::map<std::pair<Phase, std::string>, Total> totals_;
  double phase_seconds_[kPhases] = {};
};

/// One span: from here to the end of the scope. Does nothing without a trace.
class TraceSpan {
 public:
  TraceSpan(Trace* trace, Phase phase, std::string_view name) : trace_(trace) {
    if (trace_) span_ = trace_->begin(phase, name);
  }
  ~TraceSpan() {
    if (trace_) trace_->end(span_);
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  Trace* trace_;
  uint64_t span_ = 0;
};

/// The result of `run`, with a span around it.
template <typename Run>
auto traced(Trace* trace, Phase phase, std::string_view name, const Run& run) {
  const TraceSpan span(trace, phase, name);
  return run();
}

}  // namespace nibble
