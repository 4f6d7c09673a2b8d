#pragma once
// What in an output directory is of a run: known by its content, so that nothing else is replaced or removed.

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace nibble {

/// How every page about runs begins: its title is "nibble: TITLE".
inline constexpr std::string_view kPageMark =
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
    "content=\"width=device-width, initial-scale=1\"><title>nibble: ";

namespace detail {

/// What is in the directory already.
struct Contents {
  std::vector<int64_t> checkpoints;  ///< of nibble, damaged or not
  bool metrics = false;              ///< a metrics.jsonl of nibble, maybe empty: a run began here
  bool results = false;              ///< a run ended here

  bool has_run() const { return metrics || !checkpoints.empty(); }
};

Contents look(const std::filesystem::path& directory);

/// Throws UsageError where a run in `directory` would replace what is not of a run: files unless `force`; directories,
/// among them checkpoints/step-N, always.
void require_own(const std::filesystem::path& directory, const Contents& contents, bool force);

/// Removes the run in `directory` and nothing else.
void remove_own(const std::filesystem::path& directory);

}  // namespace detail

}  // namespace nibble
