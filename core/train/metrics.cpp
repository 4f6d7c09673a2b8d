#include "nibble/core/train/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "nibble/core/io/atomic_file.h"
#include "nibble/core/io/json_file.h"
#include "nibble/core/io/system_error.h"

namespace nibble {

namespace {

// A pair of fields, `,"name":value`.
std::string field(const char* name, double value) {
  char text[64];
  std::snprintf(text, sizeof text, ",\"%s\":%.17g", name, value);
  return text;
}

std::string field(const char* name, int64_t value) { return ",\"" + std::string(name) + "\":" + std::to_string(value); }

std::string line_start(int64_t step, const char* split) {
  return "{\"step\":" + std::to_string(step) + ",\"split\":\"" + split + "\"";
}

// Lines of steps up to last_step, in order; what is no object with a step goes too.
std::string kept_lines(const std::string& text, int64_t last_step) {
  std::string kept;
  size_t begin = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; begin = end + 1, end = text.find('\n', begin)) {
    const std::string line = text.substr(begin, end - begin);
    const nlohmann::json value = nlohmann::json::parse(line, nullptr, false);
    if (!value.is_object() || !value.contains("step") || !value["step"].is_number_integer()) continue;
    if (value["step"].get<int64_t>() <= last_step) kept += line + "\n";
  }
  return kept;
}

}  // namespace

std::string metrics_line(const StepReport& report) {
  return line_start(report.step, "train") + field("loss", report.loss) + field("lr", report.lr) +
         field("grad_norm", report.grad_norm) + field("label_tokens", report.label_tokens) +
         field("tokens", report.tokens) + field("tokens_per_second", report.tokens_per_second) +
         field("peak_memory_bytes", report.peak_memory_bytes) + field("seconds", report.seconds) + "}";
}

std::string metrics_line(const EvaluationReport& report) {
  return line_start(report.step, "eval") + field("loss", report.loss) + field("perplexity", report.perplexity) +
         field("label_tokens", report.label_tokens) + field("tokens", report.tokens) +
         field("seconds", report.seconds) + "}";
}

std::string sample_line(const SampleReport& report) {
  const nlohmann::ordered_json line = {
      {"step", report.step}, {"prompt", report.prompt}, {"expected", report.expected}, {"text", report.text}};
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

MetricsFile::MetricsFile(const std::filesystem::path& path, int64_t last_step) : path_(path) {
  constexpr size_t kLargest = size_t{4} << 30;
  if (std::filesystem::exists(path)) {
    const std::string text = read_text_file(path, kLargest);
    const std::string kept = kept_lines(text, last_step);
    if (kept != text) write_file_atomically(path, kept);
  }
  descriptor_ = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw system_error(path, "cannot be opened", errno);
}

MetricsFile::~MetricsFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void MetricsFile::append(const std::string& line) {
  const std::string text = line + "\n";
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = write(descriptor_, text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw system_error(path_, "cannot be written", errno);
    written += static_cast<size_t>(count);
  }
}

void MetricsFile::sync() {
  if (fsync(descriptor_) != 0) throw system_error(path_, "cannot be synced", errno);
}

}  // namespace nibble
