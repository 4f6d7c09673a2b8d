#include "nibble/recipes/report/html.h"

#include "nibble/core/text/unicode/visible_text.h"
#include "nibble/core/train/run/own_contents.h"

namespace nibble {

namespace {

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; --line: #8884; --card: #8881; --accent: #2f6fde; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1180px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
.quiet { opacity: .7; } code, pre { font: 13px/1.45 ui-monospace, monospace; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: .7rem; margin: 1.2rem 0; }
.tile { background: var(--card); border-radius: 8px; padding: .6rem .8rem; }
.tile b { display: block; font-size: 1.25rem; font-weight: 600; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); gap: 1rem; }
.plots > div { border: 1px solid var(--line); border-radius: 8px; padding: .4rem; }
svg { width: 100%; height: auto; display: block; }
.wide { overflow-x: auto; } .even table { table-layout: fixed; min-width: 640px; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; vertical-align: top; padding: .35rem .6rem;
  border-bottom: 1px solid var(--line); white-space: pre-wrap; overflow-wrap: anywhere; } th { font-weight: 600; }
pre { background: var(--card); border-radius: 8px; padding: .8rem; overflow: auto; }
)";

}  // namespace

std::string escape_html(std::string_view text) {
  std::string result;
  for (const char c : visible_text(text, Lines::many)) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string html_page(std::string_view title, const std::string& body) {
  return std::string(kPageMark) + escape_html(title) + "</title><link rel=\"icon\" href=\"data:,\"><style>" +
         std::string(kStyle) + "</style></head><body>\n" + body + "</body></html>\n";
}

std::string html_table(const std::vector<std::vector<std::string>>& rows, Columns columns) {
  std::string text = std::string("<div class=\"wide") + (columns == Columns::even ? " even" : "") + "\"><table>\n";
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string cell = i == 0 ? "th" : "td";
    text += "<tr>";
    for (const std::string& value : rows[i]) text += "<" + cell + ">" + escape_html(value) + "</" + cell + ">";
    text += "</tr>\n";
  }
  return text + "</table></div>\n";
}

}  // namespace nibble
