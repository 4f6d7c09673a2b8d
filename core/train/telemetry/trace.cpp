#include "nibble/core/train/telemetry/trace.h"

#include "nibble/core/formatting/readable.h"

namespace nibble {

namespace {

constexpr std::string_view kNames[kPhases] = {"other",     "data",          "forward", "backward",
                                              "optimizer", "communication", "io",      "evaluation"};

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

std::string json_string(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return result + '"';
}

std::string json_number(double value) { return formatted("%.3f", value); }

}  // namespace

std::string_view phase_name(Phase phase) { return kNames[static_cast<int>(phase)]; }

Trace::Trace(int rank, size_t max_events)
    : rank_(rank), max_events_(max_events), thread_(std::this_thread::get_id()), start_(Clock::now()) {}

uint64_t Trace::begin(Phase phase, std::string_view name) {
  if (std::this_thread::get_id() != thread_) return 0;
  if (!open_.empty() && open_.back().phase == Phase::evaluation) phase = Phase::evaluation;
  const auto total = totals_.try_emplace({phase, std::string(name)}).first;
  open_.push_back({++begun_, phase, total, Clock::now()});
  return begun_;
}

void Trace::end(uint64_t span) {
  if (std::this_thread::get_id() != thread_) return;
  bool open = false;
  for (const Open& one : open_) open = open || one.number == span;
  while (open && open_.back().number > span) end_last();
  if (open) end_last();
}

void Trace::end_last() {
  const Open span = open_.back();
  open_.pop_back();
  const double whole = seconds_between(span.begin, Clock::now());
  const double own = whole - span.inside;
  ++span.total->second.count;
  span.total->second.seconds += own;
  phase_seconds_[static_cast<size_t>(span.phase)] += own;
  if (!open_.empty()) open_.back().inside += whole;
  if (events_.size() < max_events_) {
    events_.push_back({&span.total->first, seconds_between(start_, span.begin) * 1e6, whole * 1e6});
  }
}

void Trace::count(std::string_view name, double value) {
  if (counts_.size() < max_events_) {
    counts_.push_back({std::string(name), seconds_between(start_, Clock::now()) * 1e6, value});
  }
}

double Trace::seconds() const {
  double sum = 0;
  for (const double phase : phase_seconds_) sum += phase;
  return sum;
}

std::string Trace::chrome_json() const {
  const std::string process = ",\"pid\":" + std::to_string(rank_) + ",\"tid\":0";
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{\"name\":\"process_name\",\"ph\":\"M\"" +
                     process + ",\"args\":{\"name\":\"rank " + std::to_string(rank_) + "\"}}";
  for (const Event& event : events_) {
    text +=
        ",\n{\"name\":" + json_string(event.what->second) + ",\"cat\":" + json_string(phase_name(event.what->first)) +
        ",\"ph\":\"X\",\"ts\":" + json_number(event.begin) + ",\"dur\":" + json_number(event.duration) + process + "}";
  }
  for (const Count& counted : counts_) {
    text += ",\n{\"name\":" + json_string(counted.name) + ",\"ph\":\"C\",\"ts\":" + json_number(counted.at) + process +
            ",\"args\":{\"value\":" + json_number(counted.value) + "}}";
  }
  return text + "\n]}\n";
}

}  // namespace nibble
