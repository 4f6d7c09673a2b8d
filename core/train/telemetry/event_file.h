#pragma once
// Event files as TensorBoard reads them: records framed as TFRecord (length, masked CRC-32C, bytes, masked CRC-32C),
// each a tensorflow.Event message. Formats: tensorflow/core/lib/io/record_writer.h, core/util/event.proto,
// core/framework/summary.proto.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble {

/// What cannot be written (a full disk) is kept and written with a later record: curves are no reason to end a run.
/// One file `events.out.tfevents.SECONDS.HOST.PID.N` of a log directory; TensorBoard shows all files of a directory as
/// one run.
class EventFile {
 public:
  /// Makes the directory and the file. continues_at: the first step that will be written when a run goes on; what other
  /// files of the directory say about it and later steps is then void. 0: a new run. Throws IoError.
  explicit EventFile(const std::filesystem::path& directory, int64_t continues_at = 0);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  const std::filesystem::path& path() const { return path_; }

  /// Points of curves at `step`; a tag "train/loss" is shown under "train".
  void add_scalars(int64_t step, std::span<const std::pair<std::string_view, double>> values);
  /// A text (Markdown) at `step`, for TensorBoard's text page.
  void add_text(int64_t step, std::string_view tag, std::string_view text);

 private:
  void write(const std::string& event);

  std::filesystem::path path_;
  int descriptor_ = -1;
  std::string waiting_;  // what could not be written yet
};

/// CRC-32C (Castagnoli, RFC 3720) of `bytes`.
uint32_t crc32c(std::string_view bytes);

}  // namespace nibble
