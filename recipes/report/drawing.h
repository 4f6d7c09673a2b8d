#pragma once
// A plot laid out: lines, boxes and words in pixels, for whoever draws them. Internal to recipes/report.

#include <string>
#include <vector>

#include "nibble/recipes/report/plot.h"

namespace nibble::detail {

struct Point {
  double x = 0, y = 0;
};

enum class Align { left, middle, right };

struct Words {
  Point at;  ///< of the base line
  std::string text;
  Align align = Align::left;
  bool strong = false;
  bool upwards = false;  ///< read from bottom to top
};

struct Stroke {
  std::vector<Point> points;
  std::string color;  ///< "" = faint line of the grid
  double width = 1;
};

struct Box {
  Point corner;  ///< top left
  double width = 0, height = 0;
  std::string color;
};

struct Drawing {
  std::vector<Stroke> strokes;
  std::vector<Box> boxes;
  std::vector<Words> words;
};

Drawing lay_out(const Plot& plot, int width, int height);

}  // namespace nibble::detail
