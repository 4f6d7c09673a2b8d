#pragma once
// Tiles of AMX, for functions chosen at run time (isa()): 16 rows of 64 bytes each, and products of two of them that
// are added to a third (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter "Programming
// with Intel AMX"). Instructions are assembly, because those of GCC 12 take no template's number for a tile. Include
// only in .cpp files for x86-64.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace nibble::amx {

constexpr int64_t kTileRows = 16, kTileBytes = 64;
/// Of a block of sums; bytes of a row of the right operand, 64 columns of 4 bytes.
constexpr int64_t kRows = 3 * kTileRows, kRightBytes = 256;
/// The tiles that are no sums.
constexpr int kLeft = 6, kRight = 7;

/// Rows of the calling thread's tiles, but those of kRight, which are 16; 0: none are in use.
inline constinit thread_local int64_t configured_rows = 0;

inline void configure(int64_t rows) {
  if (rows == configured_rows) return;
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  for (int tile = 0; tile <= kRight; ++tile) {
    config.row_bytes[tile] = kTileBytes;
    config.rows[tile] = static_cast<uint8_t>(tile == kRight ? kTileRows : rows);
  }
  asm volatile("ldtilecfg %0" ::"m"(config));
  configured_rows = rows;
}

/// Ends the use of tiles by the calling thread, whose switches from core to core would save 8 KB of them.
inline void release() {
  if (configured_rows != 0) asm volatile("tilerelease");
  configured_rows = 0;
}

template <int kTile>
void zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kTile>
void load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%1,%2), %%tmm%c0" ::"i"(kTile), "r"(from), "r"(stride) : "memory");
}
template <int kTile>
void store(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2)" ::"i"(kTile), "r"(to), "r"(stride) : "memory");
}

/// f32 sums of pairs of bf16. Of the 16 pairs of a row and a column the first elements' products are summed, the second
/// ones', both sums, and that is added to the tile; every step is rounded to nearest even and subnormal numbers are 0.
struct Bf16 {
  template <int kSum>
  static void add() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kLeft), "i"(kRight));
  }
};

/// 32-bit sums of fours of bytes, the left ones signed, the right ones not.
struct Int8 {
  template <int kSum>
  static void add() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kLeft), "i"(kRight));
  }
};

/// Sums of up to 48 rows, in tiles: 3 x 2 of them, or 1 x 4. A product of tiles starts every 16 cycles and takes 52, so
/// four or more are under way; a tile is loaded in 8 cycles from the first cache level, in more from the second, and
/// 3 x 2 products load 7. The last 16 rows make the last tile, also where the tile before has some of them:
/// both have the same sums there.
class Block {
 public:
  /// Of the first of `columns` columns.
  Block(int64_t rows, int64_t columns)
      : tile_rows_((rows + kTileRows - 1) / kTileRows),
        tile_columns_(std::min<int64_t>(tile_rows_ == 1 ? 4 : 2, (columns + kTileRows - 1) / kTileRows)),
        last_(std::max<int64_t>(0, rows - kTileRows)) {
    configure(std::min(rows, kTileRows));
  }

  /// Columns that it has.
  int64_t width() const { return tile_columns_ * kTileRows; }

  /// visit.operator()<tile>(row, column) for its tiles of sums, with the first row and column of each.
  template <typename Visit>
  void each(const Visit& visit) const {
    with_shape([&]<int kRowCount, int kColumnCount>() {
      repeat<kRowCount>([&]<int kRow>() {
        repeat<kColumnCount>([&]<int kColumn>() {
          visit.template operator()<2 * kRow + kColumn>(first_row<kRow>(), kColumn * kTileRows);
        });
      });
    });
  }

  /// Adds products of `tiles` tiles of depth, 64 bytes of each row of `left`, `stride` bytes apart, with 16 rows of
  /// `right`, `right_stride` bytes apart.
  template <typename Dot>
  void multiply(const void* left, int64_t stride, const void* right, int64_t right_stride, int64_t tiles) const {
    with_shape([&]<int kRowCount, int kColumnCount>() {
      const auto *a = static_cast<const std::byte*>(left), *b = static_cast<const std::byte*>(right);
      for (int64_t t = 0; t < tiles; ++t, a += kTileBytes, b += kTileRows * right_stride) {
        // Columns there and back: the right tile serves two rows.
        repeat<kRowCount>([&]<int kRow>() {
          load<kLeft>(a + first_row<kRow>() * stride, stride);
          repeat<kColumnCount>([&]<int kTurn>() {
            constexpr int kColumn = kRow % 2 == 0 ? kTurn : kColumnCount - 1 - kTurn;
            if (kRow == 0 || kTurn > 0) load<kRight>(b + kColumn * kTileBytes, right_stride);
            Dot::template add<2 * kRow + kColumn>();
          });
        });
      }
    });
  }

 private:
  template <int kCount, typename Visit>
  static void repeat(const Visit& visit) {
    [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) { (visit.template operator()<kIndex>(), ...); }
    (std::make_integer_sequence<int, kCount>());
  }

  template <typename Use>
  void with_shape(const Use& use) const {
    if (tile_rows_ == 1) {
      if (tile_columns_ == 1) return use.template operator()<1, 1>();
      if (tile_columns_ == 2) return use.template operator()<1, 2>();
      if (tile_columns_ == 3) return use.template operator()<1, 3>();
      return use.template operator()<1, 4>();
    }
    if (tile_rows_ == 2) {
      return tile_columns_ == 1 ? use.template operator()<2, 1>() : use.template operator()<2, 2>();
    }
    return tile_columns_ == 1 ? use.template operator()<3, 1>() : use.template operator()<3, 2>();
  }

  template <int kRow>
  int64_t first_row() const {
    return std::min(kRow * kTileRows, last_);
  }

  int64_t tile_rows_, tile_columns_, last_;
};

}  // namespace nibble::amx
