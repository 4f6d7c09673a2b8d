// Drawings as PNG: a small rasterizer, letters of 5 x 7 dots, and a deflate stream of fixed codes (RFC 1950, 1951, PNG
// specification). Pictures of lines on white are long runs, which is all the compression looks for.

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "nibble/recipes/report/drawing.h"

namespace nibble {

namespace {

using Rgb = std::array<double, 3>;

constexpr Rgb kInk = {0x22, 0x22, 0x22}, kGrid = {0xdd, 0xdd, 0xdd};
constexpr int kScale = 2;  // plots are laid out at half the size, so that letters can be read

struct Glyph {
  char letter;
  std::array<uint8_t, 7> rows;  // five dots a row, the left one highest
};

constexpr Glyph kGlyphs[] = {
    {'0', {0x0e, 0x11, 0x13, 0x15, 0x19, 0x11, 0x0e}},
    {'1', {0x04, 0x0c, 0x04, 0x04, 0x04, 0x04, 0x0e}},
    {'2', {0x0e, 0x11, 0x01, 0x02, 0x04, 0x08, 0x1f}},
    {'3', {0x1f, 0x02, 0x04, 0x02, 0x01, 0x11, 0x0e}},
    {'4', {0x02, 0x06, 0x0a, 0x12, 0x1f, 0x02, 0x02}},
    {'5', {0x1f, 0x10, 0x1e, 0x01, 0x01, 0x11, 0x0e}},
    {'6', {0x06, 0x08, 0x10, 0x1e, 0x11, 0x11, 0x0e}},
    {'7', {0x1f, 0x01, 0x02, 0x04, 0x08, 0x08, 0x08}},
    {'8', {0x0e, 0x11, 0x11, 0x0e, 0x11, 0x11, 0x0e}},
    {'9', {0x0e, 0x11, 0x11, 0x0f, 0x01, 0x02, 0x0c}},
    {'A', {0x0e, 0x11, 0x11, 0x1f, 0x11, 0x11, 0x11}},
    {'B', {0x1e, 0x11, 0x11, 0x1e, 0x11, 0x11, 0x1e}},
    {'C', {0x0e, 0x11, 0x10, 0x10, 0x10, 0x11, 0x0e}},
    {'D', {0x1e, 0x11, 0x11, 0x11, 0x11, 0x11, 0x1e}},
    {'E', {0x1f, 0x10, 0x10, 0x1e, 0x10, 0x10, 0x1f}},
    {'F', {0x1f, 0x10, 0x10, 0x1e, 0x10, 0x10, 0x10}},
    {'G', {0x0e, 0x11, 0x10, 0x17, 0x11, 0x11, 0x0f}},
    {'H', {0x11, 0x11, 0x11, 0x1f, 0x11, 0x11, 0x11}},
    {'I', {0x0e, 0x04, 0x04, 0x04, 0x04, 0x04, 0x0e}},
    {'J', {0x07, 0x02, 0x02, 0x02, 0x02, 0x12, 0x0c}},
    {'K', {0x11, 0x12, 0x14, 0x18, 0x14, 0x12, 0x11}},
    {'L', {0x10, 0x10, 0x10, 0x10, 0x10, 0x10, 0x1f}},
    {'M', {0x11, 0x1b, 0x15, 0x15, 0x11, 0x11, 0x11}},
    {'N', {0x11, 0x19, 0x15, 0x13, 0x11, 0x11, 0x11}},
    {'O', {0x0e, 0x11, 0x11, 0x11, 0x11, 0x11, 0x0e}},
    {'P', {0x1e, 0x11, 0x11, 0x1e, 0x10, 0x10, 0x10}},
    {'Q', {0x0e, 0x11, 0x11, 0x11, 0x15, 0x12, 0x0d}},
    {'R', {0x1e, 0x11, 0x11, 0x1e, 0x14, 0x12, 0x11}},
    {'S', {0x0f, 0x10, 0x10, 0x0e, 0x01, 0x01, 0x1e}},
    {'T', {0x1f, 0x04, 0x04, 0x04, 0x04, 0x04, 0x04}},
    {'U', {0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x0e}},
    {'V', {0x11, 0x11, 0x11, 0x11, 0x11, 0x0a, 0x04}},
    {'W', {0x11, 0x11, 0x11, 0x15, 0x15, 0x1b, 0x11}},
    {'X', {0x11, 0x11, 0x0a, 0x04, 0x0a, 0x11, 0x11}},
    {'Y', {0x11, 0x11, 0x0a, 0x04, 0x04, 0x04, 0x04}},
    {'Z', {0x1f, 0x01, 0x02, 0x04, 0x08, 0x10, 0x1f}},
    {'.', {0, 0, 0, 0, 0, 0x0c, 0x0c}},
    {',', {0, 0, 0, 0, 0x0c, 0x04, 0x08}},
    {'-', {0, 0, 0, 0x1f, 0, 0, 0}},
    {'+', {0, 0x04, 0x04, 0x1f, 0x04, 0x04, 0}},
    {'/', {0x01, 0x01, 0x02, 0x04, 0x08, 0x10, 0x10}},
    {'%', {0x18, 0x19, 0x02, 0x04, 0x08, 0x13, 0x03}},
    {'(', {0x02, 0x04, 0x08, 0x08, 0x08, 0x04, 0x02}},
    {')', {0x08, 0x04, 0x02, 0x02, 0x02, 0x04, 0x08}},
    {':', {0, 0x0c, 0x0c, 0, 0x0c, 0x0c, 0}},
    {'=', {0, 0, 0x1f, 0, 0x1f, 0, 0}},
    {'_', {0, 0, 0, 0, 0, 0, 0x1f}},
};

Rgb color_of(const std::string& text) {
  if (text.empty()) return kGrid;
  const unsigned long value = std::strtoul(text.c_str() + 1, nullptr, 16);
  return {static_cast<double>(value >> 16 & 255), static_cast<double>(value >> 8 & 255),
          static_cast<double>(value & 255)};
}

class Canvas {
 public:
  Canvas(int width, int height)
      : width_(width), height_(height), pixels_(static_cast<size_t>(width * height), {255, 255, 255}) {}

  void blend(int x, int y, const Rgb& color, double cover) {
    if (x < 0 || y < 0 || x >= width_ || y >= height_ || cover <= 0) return;
    Rgb& pixel = pixels_[static_cast<size_t>(y) * static_cast<size_t>(width_) + static_cast<size_t>(x)];
    for (size_t c = 0; c < 3; ++c) pixel[c] += (color[c] - pixel[c]) * std::min(cover, 1.0);
  }
  void box(double left, double top, double right, double bottom, const Rgb& color) {
    for (int y = static_cast<int>(std::floor(top)); y < bottom; ++y) {
      for (int x = static_cast<int>(std::floor(left)); x < right; ++x) {
        const double across = std::min<double>(x + 1, right) - std::max<double>(x, left);
        const double down = std::min<double>(y + 1, bottom) - std::max<double>(y, top);
        blend(x, y, color, std::max(0.0, across) * std::max(0.0, down));
      }
    }
  }
  void line(detail::Point a, detail::Point b, double width, const Rgb& color);
  void words(const detail::Words& words);
  /// Rows of RGB bytes, each after the byte of filter "none".
  std::string rows() const;

 private:
  int width_, height_;
  std::vector<Rgb> pixels_;
};

// Coverage from the distance of the pixel's middle to the segment.
void Canvas::line(detail::Point a, detail::Point b, double width, const Rgb& color) {
  const double reach = width / 2 + 1, dx = b.x - a.x, dy = b.y - a.y, length = dx * dx + dy * dy;
  const int top = static_cast<int>(std::min(a.y, b.y) - reach), bottom = static_cast<int>(std::max(a.y, b.y) + reach);
  const int left = static_cast<int>(std::min(a.x, b.x) - reach), right = static_cast<int>(std::max(a.x, b.x) + reach);
  for (int y = top; y <= bottom; ++y) {
    for (int x = left; x <= right; ++x) {
      const double px = x + 0.5 - a.x, py = y + 0.5 - a.y;
      const double along = length > 0 ? std::clamp((px * dx + py * dy) / length, 0.0, 1.0) : 0.0;
      const double distance = std::hypot(px - along * dx, py - along * dy);
      blend(x, y, color, width / 2 + 0.5 - distance);
    }
  }
}

void Canvas::words(const detail::Words& words) {
  const double length = 6.0 * static_cast<double>(words.text.size()) - 1;
  const double shift = words.align == detail::Align::left     ? 0
                       : words.align == detail::Align::middle ? length / 2
                                                              : length;
  for (size_t i = 0; i < words.text.size(); ++i) {
    const char letter = static_cast<char>(std::toupper(static_cast<unsigned char>(words.text[i])));
    const auto* glyph =
        std::find_if(std::begin(kGlyphs), std::end(kGlyphs), [&](const Glyph& g) { return g.letter == letter; });
    if (glyph == std::end(kGlyphs)) continue;
    for (int row = 0; row < 7; ++row) {
      for (int column = 0; column < 5; ++column) {
        if ((glyph->rows[static_cast<size_t>(row)] >> (4 - column) & 1) == 0) continue;
        const double along = 6.0 * static_cast<double>(i) + column - shift, down = row - 7.0;
        const double x = words.at.x + (words.upwards ? down : along),
                     y = words.at.y + (words.upwards ? -along - 1 : down);
        box(std::round(x) * kScale, std::round(y) * kScale, (std::round(x) + 1) * kScale, (std::round(y) + 1) * kScale,
            kInk);
      }
    }
  }
}

std::string Canvas::rows() const {
  std::string bytes;
  for (int y = 0; y < height_; ++y) {
    bytes += '\0';
    for (int x = 0; x < width_; ++x) {
      for (const double value :
           pixels_[static_cast<size_t>(y) * static_cast<size_t>(width_) + static_cast<size_t>(x)]) {
        bytes += static_cast<char>(static_cast<uint8_t>(std::lround(value)));
      }
    }
  }
  return bytes;
}

/// One deflate block of fixed Huffman codes whose only matches are "the same pixel again" (distance 3).
class Deflate {
 public:
  std::string compress(const std::string& bytes) {
    bits(1, 1);  // last block
    bits(1, 2);  // fixed codes
    for (size_t i = 0; i < bytes.size();) {
      size_t run = 0;
      while (i >= 3 && run < 258 && i + run < bytes.size() && bytes[i + run] == bytes[i + run - 3]) ++run;
      if (run >= 3) {
        match(static_cast<int>(run));
        i += run;
      } else {
        symbol(static_cast<uint8_t>(bytes[i++]));
      }
    }
    symbol(256);
    if (filled_ > 0) bits(0, 8 - filled_);
    return out_;
  }

 private:
  void bits(uint32_t value, int count) {  // lowest first
    for (int i = 0; i < count; ++i) {
      byte_ |= (value >> i & 1) << filled_;
      if (++filled_ == 8) {
        out_ += static_cast<char>(byte_);
        byte_ = 0;
        filled_ = 0;
      }
    }
  }
  void code(uint32_t value, int count) {  // Huffman codes go highest first
    for (int i = count - 1; i >= 0; --i) bits(value >> i & 1, 1);
  }
  void symbol(int value) {
    const uint32_t v = static_cast<uint32_t>(value);
    if (value < 144) return code(0x30 + v, 8);
    if (value < 256) return code(0x190 + v - 144, 9);
    if (value < 280) return code(v - 256, 7);
    code(0xc0 + v - 280, 8);
  }
  void match(int length) {
    if (length == 258) {
      symbol(285);
    } else {
      int extra = 0, base = 3, first = 257;  // groups of codes: 8 without extra bits, then 4 for each number of them
      while (true) {
        const int codes = extra == 0 ? 8 : 4;
        if (length < base + (codes << extra)) break;
        base += codes << extra;
        first += codes;
        ++extra;
      }
      symbol(first + ((length - base) >> extra));
      bits(static_cast<uint32_t>((length - base) & ((1 << extra) - 1)), extra);
    }
    code(2, 5);  // distance 3
  }

  std::string out_;
  uint32_t byte_ = 0;
  int filled_ = 0;
};

void put_big_endian(std::string& out, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 255);
}

uint32_t adler32(const std::string& bytes) {
  uint32_t a = 1, b = 0;
  for (const char byte : bytes) {
    a = (a + static_cast<uint8_t>(byte)) % 65521;
    b = (b + a) % 65521;
  }
  return b << 16 | a;
}

uint32_t crc32(const std::string& bytes) {
  uint32_t crc = 0xffffffffu;
  for (const char byte : bytes) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0xedb88320u : 0u);
  }
  return ~crc;
}

void put_chunk(std::string& out, const std::string& type, const std::string& content) {
  put_big_endian(out, static_cast<uint32_t>(content.size()));
  out += type + content;
  put_big_endian(out, crc32(type + content));
}

}  // namespace

std::string png(const Plot& plot, int width, int height) {
  const detail::Drawing drawing = detail::lay_out(plot, width / kScale, height / kScale);
  Canvas canvas(width, height);
  const auto scaled = [](detail::Point point) { return detail::Point{point.x * kScale, point.y * kScale}; };
  for (const detail::Stroke& stroke : drawing.strokes) {
    for (size_t i = 1; i < stroke.points.size(); ++i) {
      canvas.line(scaled(stroke.points[i - 1]), scaled(stroke.points[i]), stroke.width * 1.4, color_of(stroke.color));
    }
  }
  for (const detail::Box& box : drawing.boxes) {
    canvas.box(box.corner.x * kScale, box.corner.y * kScale, (box.corner.x + box.width) * kScale,
               (box.corner.y + box.height) * kScale, color_of(box.color));
  }
  for (const detail::Words& words : drawing.words) canvas.words(words);

  const std::string rows = canvas.rows();
  std::string header, data = "\x78\x01";
  put_big_endian(header, static_cast<uint32_t>(width));
  put_big_endian(header, static_cast<uint32_t>(height));
  header += std::string("\x08\x02\x00\x00\x00", 5);  // 8 bits, RGB
  data += Deflate().compress(rows);
  put_big_endian(data, adler32(rows));
  std::string file = "\x89PNG\r\n\x1a\n";
  put_chunk(file, "IHDR", header);
  put_chunk(file, "IDAT", data);
  put_chunk(file, "IEND", "");
  return file;
}

}  // namespace nibble
