// Drawings as SVG.

#include "nibble/core/formatting/readable.h"
#include "nibble/recipes/report/drawing.h"
#include "nibble/recipes/report/html.h"

namespace nibble {

namespace {

std::string number(double value) { return formatted("%.1f", value); }

}  // namespace

std::string svg(const Plot& plot, int width, int height) {
  const detail::Drawing drawing = detail::lay_out(plot, width, height);
  const std::string size = std::to_string(width) + " " + std::to_string(height);
  std::string text = std::string(kPlotMark) + " xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + size +
                     "\" font-family=\"system-ui, sans-serif\" font-size=\"12\" role=\"img\"><title>" +
                     escape_html(plot.title) + "</title>\n";
  for (const detail::Stroke& stroke : drawing.strokes) {
    text += "<polyline fill=\"none\" stroke=\"" + (stroke.color.empty() ? "currentColor" : stroke.color) +
            "\" stroke-width=\"" + number(stroke.width) + "\"" +
            (stroke.color.empty() ? " stroke-opacity=\"0.15\"" : " stroke-linejoin=\"round\"") + " points=\"";
    for (const detail::Point& point : stroke.points) text += number(point.x) + "," + number(point.y) + " ";
    text += "\"/>\n";
  }
  for (const detail::Box& box : drawing.boxes) {
    text += "<rect x=\"" + number(box.corner.x) + "\" y=\"" + number(box.corner.y) + "\" width=\"" + number(box.width) +
            "\" height=\"" + number(box.height) + "\" rx=\"2\" fill=\"" + box.color + "\"/>\n";
  }
  for (const detail::Words& words : drawing.words) {
    const char* anchor = words.align == detail::Align::left     ? "start"
                         : words.align == detail::Align::middle ? "middle"
                                                                : "end";
    const std::string x = number(words.at.x), y = number(words.at.y);
    text += "<text fill=\"currentColor\" x=\"" + x + "\" y=\"" + y + "\" text-anchor=\"" + anchor + "\"" +
            (words.strong ? " font-weight=\"600\"" : " fill-opacity=\"0.75\"") +
            (words.upwards ? " transform=\"rotate(-90 " + x + " " + y + ")\"" : "") + ">" + escape_html(words.text) +
            "</text>\n";
  }
  return text + "</svg>\n";
}

}  // namespace nibble
