#include "nibble/benchmarks/section_recorder.h"

#include <time.h>

#include <utility>

namespace nibble::benchmarks {

SectionRecorder::SectionRecorder(int workers) : ParallelObserver(workers) { lap(); }

std::vector<ParallelSection> SectionRecorder::finish() {
  sections_.emplace_back().gap = lap();
  return std::exchange(sections_, {});
}

void SectionRecorder::begin_section(int64_t pieces, const void* code) {
  ParallelSection& section = sections_.emplace_back();
  section.code = code;
  section.pieces.reserve(static_cast<size_t>(pieces));
  section.gap = lap();
  in_section_ = true;
}

void SectionRecorder::end_section() {
  in_section_ = false;
  lap();
}

void SectionRecorder::end_piece() { sections_.back().pieces.push_back(lap()); }

void SectionRecorder::step(const void* progress, int64_t stage, bool waits) {
  if (!in_section_) return;  // of a section that has one piece
  ParallelSection& section = sections_.back();
  section.steps.push_back({static_cast<int64_t>(section.pieces.size()), lap(), progress, stage, waits});
}

double SectionRecorder::lap() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  const double now = static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  return now - std::exchange(last_, now);
}

}  // namespace nibble::benchmarks
