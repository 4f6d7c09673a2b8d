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
  const double gap = lap();
  ParallelSection& section = sections_.emplace_back();
  section.code = code;
  section.gap = gap;
  section.pieces.reserve(static_cast<size_t>(pieces));
  in_section_ = true;
  lap();
}

void SectionRecorder::end_section() {
  in_section_ = false;
  lap();
}

void SectionRecorder::end_piece() { sections_.back().pieces.push_back(lap()); }

void SectionRecorder::step(const void* progress, int64_t stage, bool waits) {
  if (!in_section_) return;  // of a section that has one piece
  const double seconds = lap();
  ParallelSection& section = sections_.back();
  section.steps.push_back({static_cast<int64_t>(section.pieces.size()), seconds, progress, stage, waits});
  lap();  // a longer list costs the work nothing
}

double SectionRecorder::lap() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  const double now = static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  return now - std::exchange(last_, now);
}

}  // namespace nibble::benchmarks
