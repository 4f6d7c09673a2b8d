#pragma once
// Curves and bars as pictures: SVG text.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble {

struct Curve {
  std::string name;
  std::string color;                              ///< "#rrggbb"
  std::vector<std::pair<double, double>> points;  ///< x, y; pairs that are not finite, or beyond 1e300, are left out
  double width = 2;                               ///< of the line, in pixels
  bool marks = false;                             ///< a dot at every point
};

/// One pair of axes. With bars, each curve's points are columns.
struct Plot {
  std::string title;
  std::string x_label, y_label;
  std::vector<Curve> curves;
  bool bars = false;
  bool from_zero = false;  ///< the y axis starts at 0
  bool x_doubles = false;  ///< x are exponents of two: its ticks show 1, 2, 4, 8
};

/// How every plot begins.
inline constexpr std::string_view kPlotMark = "<svg class=\"nibble-plot\"";

/// A picture of `width` times `height`, complete <svg> element; text takes the colour of what is around it.
std::string svg(const Plot& plot, int width = 560, int height = 280);

/// At most `most` points, each the mean of its neighbours: a long run stays small on the page.
std::vector<std::pair<double, double>> thinned(const std::vector<std::pair<double, double>>& points, size_t most = 600);

/// Round numbers that divide [low, high] into about `count` parts; `low` alone where there are none (an empty range,
/// one of a few units in the last place, one that is not finite).
std::vector<double> ticks(double low, double high, int count);

}  // namespace nibble
