#pragma once
// The accounting of a MemoryPool: segments of addresses, where in them a block goes, and which of their pages are
// resident. A pool of a device without bytes does the same accounting.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace nibble {

/// Addresses from `begin` up to `end`.
struct AddressRange {
  uintptr_t begin = 0, end = 0;
  size_t size() const { return end - begin; }
};

/// A block goes into the smallest free range that holds it, and free neighbours become one range: memory released by
/// blocks of one size serves those of any other, so steps of varied lengths need what the longest of them needs.
class PoolAccounting {
 public:
  static constexpr size_t kHugePage = size_t{2} << 20;

  /// budget: bytes that may be held at once; 0 = no limit. gap: bytes left free behind every block.
  explicit PoolAccounting(size_t budget, size_t gap = 0) : budget_(budget), gap_(gap) {}

  /// To whole cache lines.
  static size_t rounded(size_t bytes);

  bool fits(size_t size) const { return budget_ == 0 || in_use_ + size <= budget_; }

  struct Taken {
    uintptr_t address = 0;
    std::vector<AddressRange> returned;  ///< pages that go back to the system
  };
  /// Counts a block of `size` (rounded) as in use, aligned to 64, to 2 MiB from 2 MiB on; nothing where no free range
  /// holds it: a segment is to be added first.
  std::optional<Taken> take(size_t size);
  /// The block waits for reuse.
  void give(uintptr_t address, size_t size);
  /// All whole pages that are free: these go back to the system.
  std::vector<AddressRange> trim() { return return_pages(0); }

  /// The smallest segment that holds a block of `size`, and what to ask for first: segments double the memory of the
  /// pool, so there are few.
  size_t smallest_segment(size_t size) const;
  size_t next_segment(size_t size) const;
  /// A segment without resident pages: from 2 MiB on of pages of 2 MiB and aligned to them, else of 4 KiB.
  void add_segment(AddressRange segment);
  std::vector<AddressRange> segments() const;

  size_t budget() const { return budget_; }
  size_t in_use() const { return in_use_; }
  /// Bytes of pages that hold blocks, or held some and were not returned.
  size_t resident() const { return resident_; }
  /// Largest in_use() since the last reset_peak().
  size_t peak() const { return peak_; }
  void reset_peak() { peak_ = in_use_; }

 private:
  struct Segment {
    uintptr_t end = 0;
    size_t page = 0;
    std::vector<char> resident;  // by page; bytes, of which many are counted and filled at once
  };
  using Segments = std::map<uintptr_t, Segment>;  // by begin

  Segments::iterator segment_of(uintptr_t address) { return std::prev(segments_.upper_bound(address)); }
  void add_free(AddressRange range);
  void remove_free(AddressRange range);
  bool touch(AddressRange block);
  std::vector<AddressRange> return_pages(size_t bound);

  size_t budget_ = 0, gap_ = 0, in_use_ = 0, peak_ = 0, resident_ = 0, mapped_ = 0;
  size_t most_ = 0;  // in_use_ at its largest, ever
  Segments segments_;
  std::map<uintptr_t, uintptr_t> free_;                  // end by begin
  std::set<std::pair<size_t, uintptr_t>> free_by_size_;  // size, begin
};

}  // namespace nibble
