#include "nibble/core/train/telemetry/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "nibble/core/formatting/joined.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/files/no_space_error.h"
#include "nibble/core/io/files/open_file.h"
#include "nibble/core/io/files/system_error.h"
#include "nibble/core/io/json/json_file.h"

namespace nibble {

namespace {

// A pair of fields, `,"name":value`. Names of rewards are the recipe's, with any character.
std::string field(const std::string& name, const std::string& value) {
  return "," + nlohmann::json(name).dump() + ":" + value;
}

std::string field(const std::string& name, double value) {
  return field(name, std::isfinite(value) ? formatted("%.17g", value) : "null");  // JSON has no word for it
}

std::string field(const std::string& name, int64_t value) { return field(name, std::to_string(value)); }

std::string fields(const NamedNumbers& metrics) {
  std::string all;
  for (const auto& [name, value] : metrics) all += field(name, value);
  return all;
}

std::string line_start(int64_t step, const char* split) {
  return "{\"step\":" + std::to_string(step) + ",\"split\":\"" + split + "\"";
}

// Lines of steps up to last_step, in order, with or without that one's evaluation; what is no object with a step goes
// too.
std::string kept_lines(const std::string& text, int64_t last_step, bool evaluated) {
  std::string kept;
  size_t begin = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; begin = end + 1, end = text.find('\n', begin)) {
    const std::string line = text.substr(begin, end - begin);
    const nlohmann::json value = nlohmann::json::parse(line, nullptr, false);
    if (!value.is_object() || !value.contains("step") || !value["step"].is_number_integer()) continue;
    const int64_t step = value["step"].get<int64_t>();
    const bool left = !evaluated && step == last_step && value.value("split", nlohmann::json()) == "eval";
    if (step <= last_step && !left) kept += line + "\n";
  }
  return kept;
}

}  // namespace

std::string metrics_line(const StepReport& report) {
  std::string ranks = joined(report.rank_peak_memory_bytes, ",", [](int64_t bytes) { return std::to_string(bytes); });
  if (!ranks.empty()) ranks = ",\"rank_peak_memory_bytes\":[" + ranks + "]";
  return line_start(report.step, "train") + field("loss", report.loss) + fields(report.metrics) +
         field("lr", report.lr) + field("grad_norm", report.grad_norm) + field("label_tokens", report.label_tokens) +
         field("tokens", report.tokens) + field("num_tokens", report.num_tokens) +
         field("tokens_per_second", report.tokens_per_second) + field("peak_memory_bytes", report.peak_memory_bytes) +
         ranks + field("seconds", report.seconds) + "}";
}

std::string metrics_line(const EvaluationReport& report) {
  return line_start(report.step, "eval") + field("loss", report.loss) + fields(report.metrics) +
         field("perplexity", report.perplexity) + field("label_tokens", report.label_tokens) +
         field("tokens", report.tokens) + field("seconds", report.seconds) + "}";
}

std::string sample_line(const SampleReport& report, double seconds) {
  const nlohmann::ordered_json line = {{"step", report.step},
                                       {"prompt", report.prompt},
                                       {"expected", report.expected},
                                       {"text", report.text},
                                       {"seconds", seconds}};
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

int64_t peak_memory_bytes() {
  std::ifstream status("/proc/self/status");
  int64_t kib = 0;
  for (std::string line; std::getline(status, line);) {
    if (std::sscanf(line.c_str(), "VmHWM: %ld kB", &kib) == 1) return kib * 1024;
  }
  return 0;
}

MetricsFile::MetricsFile(const std::filesystem::path& path, int64_t last_step, bool evaluated) : path_(path) {
  constexpr size_t kLargest = size_t{4} << 30;
  if (std::filesystem::exists(path)) {
    const std::string text = read_text_file(path, kLargest);
    const std::string kept = kept_lines(text, last_step, evaluated);
    if (kept != text) write_file_atomically(path, kept);
  }
  descriptor_ = open_file(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
  if (descriptor_ < 0) throw system_error(path, "cannot be opened", errno);
}

MetricsFile::~MetricsFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

bool MetricsFile::append(const std::string& line) {
  const std::lock_guard lock(mutex_);
  waiting_ += line + "\n";
  return flush() == 0;
}

int MetricsFile::flush() {
  size_t written = 0;
  int error = 0;
  while (error == 0 && written < waiting_.size()) {
    const ssize_t count =
        uninterrupted([&] { return write(descriptor_, waiting_.data() + written, waiting_.size() - written); });
    if (count < 0) error = errno;
    if (count > 0) written += static_cast<size_t>(count);
  }
  waiting_.erase(0, written);
  return error;
}

void MetricsFile::sync() {
  {
    const std::lock_guard lock(mutex_);
    if (const int error = flush(); error != 0) throw_system_error(path_, "cannot be written", error);
  }
  if (sync_file(descriptor_) != 0) throw_system_error(path_, "cannot be synced", errno);
}

}  // namespace nibble
