#pragma once
// metrics.jsonl: one JSON object a line, numbers with 17 digits.

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>

#include "nibble/core/train/telemetry/observer.h"

namespace nibble {

/// {"step":1,"split":"train","loss":...,"lr":...,"grad_norm":...,"label_tokens":...,"tokens":...,
///  "num_tokens":...,"tokens_per_second":...,"peak_memory_bytes":...,"seconds":...}; `seconds` is the wall time of this
/// step. The objective's metrics stand behind the loss.
std::string metrics_line(const StepReport& report);
/// {"step":1,"split":"eval","loss":...,"perplexity":...,"label_tokens":...,"tokens":...,"seconds":...}; `seconds` is
/// the wall time of the evaluation. The perplexity is null where the loss has none, or none that a double holds.
std::string metrics_line(const EvaluationReport& report);

/// A line of samples.jsonl: {"step":1,"prompt":...,"expected":...,"text":...,"seconds":...}
std::string sample_line(const SampleReport& report, double seconds);

/// Largest resident size of this process so far (VmHWM of /proc/self/status), 0 where the system does not say.
int64_t peak_memory_bytes();

/// Appends lines to a file.
class MetricsFile {
 public:
  /// Opens `path`, and first takes away the lines of steps after `last_step` and a torn last line, so that a resumed
  /// run leaves the file that an uninterrupted one leaves. evaluated = false: the evaluation of last_step goes too.
  MetricsFile(const std::filesystem::path& path, int64_t last_step, bool evaluated = true);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  /// Returns false where the line cannot be written now (a full disk): it is kept and written with a later one.
  bool append(const std::string& line);
  /// Writes what waits and makes all lines survive a loss of power. Throws IoError. May run on another thread.
  void sync();

 private:
  /// Writes what waits; 0 or an errno.
  int flush();

  std::mutex mutex_;  // of waiting_
  std::string waiting_;
  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace nibble
