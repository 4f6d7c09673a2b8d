#include "nibble/recipes/report/drawing.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "nibble/core/formatting/readable.h"

namespace nibble {

std::vector<double> ticks(double low, double high, int count) {
  const double raw = (high - low) / count;
  if (!(raw > 0) || !std::isfinite(raw)) return {low};
  const double power = std::pow(10, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw * 0.999) {
      step = factor * power;
      break;
    }
  }
  const double first = std::ceil(low / step - 1e-9), last = std::floor(high / step + 1e-9);
  constexpr double kLargestCount = 1LL << 53;  // of steps from zero; beyond it k + 1 is k
  if (!(std::abs(first) < kLargestCount && std::abs(last) < kLargestCount)) return {low};
  std::vector<double> found;
  for (double k = first; k <= last; ++k) found.push_back(k * step);
  return found;
}

std::vector<std::pair<double, double>> thinned(const std::vector<std::pair<double, double>>& points, size_t most) {
  if (points.size() <= most) return points;
  std::vector<std::pair<double, double>> means;
  for (size_t k = 0; k < most; ++k) {
    const size_t begin = k * points.size() / most, end = (k + 1) * points.size() / most;
    double x = 0, y = 0;
    for (size_t i = begin; i < end; ++i) x += points[i].first, y += points[i].second;
    const double count = static_cast<double>(end - begin);
    means.emplace_back(x / count, y / count);
  }
  return means;
}

namespace detail {

namespace {

std::string tick_text(double value) {
  const double size = std::abs(value);
  if (size >= 1e9) return formatted("%.4gG", value / 1e9);
  if (size >= 1e6) return formatted("%.4gM", value / 1e6);
  if (size >= 1e4) return formatted("%.4gk", value / 1e3);
  return formatted("%.4g", size < 1e-12 ? 0.0 : value);
}

// What can be drawn: beyond it the distance of two values, with some air, is no double any more.
constexpr double kLargestDrawn = 1e300;

struct AxisRange {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();
  void take(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // Never empty, with some air. Values that differ in their last bits only are one value: their curve is a flat line.
  void settle(double air) {
    if (!(high >= low)) low = 0, high = 1;
    const bool one_value = high - low <= std::max(1e-12 * std::max(std::abs(low), std::abs(high)), 1e-300);
    const double room = one_value ? std::max(std::abs(high) * 0.1, 1e-9) : (high - low) * air;
    low -= room;
    high += room;
  }
};

bool drawable(const std::pair<double, double>& point) {
  return std::abs(point.first) <= kLargestDrawn && std::abs(point.second) <= kLargestDrawn;
}

}  // namespace

Drawing lay_out(const Plot& plot, int width, int height) {
  AxisRange x, y;
  for (const Curve& curve : plot.curves) {
    for (const auto& point : curve.points) {
      if (!drawable(point)) continue;
      x.take(point.first);
      y.take(point.second);
    }
  }
  const double columns =
      plot.curves.empty() ? 1 : std::max<double>(1, static_cast<double>(plot.curves[0].points.size()));
  x.settle(plot.bars ? 0.5 / columns : 0.0);
  y.settle(0.06);
  if (plot.from_zero || plot.bars) {
    y.low = 0;
    if (!(y.high > 0)) y.high = 1;
  }

  const double left = 64, right = width - 14, top = 34, bottom = height - 44;
  const auto at = [&](double px, double py) {
    px = std::clamp(px, x.low, x.high), py = std::clamp(py, y.low, y.high);
    return Point{left + (px - x.low) / (x.high - x.low) * (right - left),
                 bottom - (py - y.low) / (y.high - y.low) * (bottom - top)};
  };
  Drawing drawing;
  for (const double tick : ticks(y.low, y.high, 5)) {
    const double level = at(x.low, tick).y;
    drawing.strokes.push_back({{{left, level}, {right, level}}, "", 1});
    drawing.words.push_back({{left - 6, level + 4}, tick_text(tick), Align::right});
  }
  for (const double tick : ticks(x.low, x.high, std::max(3, width / 90))) {
    if (plot.x_doubles && tick != std::floor(tick)) continue;
    const std::string text = tick_text(plot.x_doubles ? std::exp2(tick) : tick);
    drawing.words.push_back({{at(tick, y.low).x, bottom + 16}, text, Align::middle});
  }
  drawing.strokes.push_back({{{left, bottom}, {right, bottom}}, "", 1});
  drawing.words.push_back({{left, 20}, plot.title, Align::left, true});
  drawing.words.push_back({{(left + right) / 2, static_cast<double>(height) - 8}, plot.x_label, Align::middle});
  if (!plot.y_label.empty()) {
    drawing.words.push_back({{14, (top + bottom) / 2}, plot.y_label, Align::middle, false, true});
  }
  double legend = right;
  for (auto curve = plot.curves.rbegin(); curve != plot.curves.rend(); ++curve) {
    if (curve->name.empty()) continue;
    legend -= 7.0 * static_cast<double>(curve->name.size());
    drawing.words.push_back({{legend, 20}, curve->name});
    drawing.boxes.push_back({{legend - 14, 12}, 10, 8, curve->color});
    legend -= 28;
  }
  for (const Curve& curve : plot.curves) {
    Stroke stroke{{}, curve.color, curve.width};
    for (const auto& point : curve.points) {
      if (!drawable(point)) continue;
      const Point place = at(point.first, point.second);
      if (plot.bars) {
        const double bar = 0.8 * (right - left) / (columns + 1);
        drawing.boxes.push_back({{place.x - bar / 2, place.y}, bar, bottom - place.y, curve.color});
        continue;
      }
      stroke.points.push_back(place);
      if (curve.marks) drawing.boxes.push_back({{place.x - 3, place.y - 3}, 6, 6, curve.color});
    }
    if (stroke.points.size() == 1 && !curve.marks) {
      drawing.boxes.push_back({{stroke.points[0].x - 3, stroke.points[0].y - 3}, 6, 6, curve.color});
    }
    if (stroke.points.size() > 1) drawing.strokes.push_back(std::move(stroke));
  }
  return drawing;
}

}  // namespace detail
}  // namespace nibble
