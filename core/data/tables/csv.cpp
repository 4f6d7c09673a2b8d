#include "nibble/core/data/tables/csv.h"

#include <algorithm>

#include "nibble/core/base/error.h"
#include "nibble/core/data/tables/json_text.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/text/unicode/utf8.h"

namespace nibble {

namespace {

/// A place in the file, put into words only where something is wrong there.
struct Place {
  const ByteSource& bytes;
  int64_t line = bytes.line(), column = bytes.column();

  [[noreturn]] void refuse(const std::string& reason, const std::string& remedy) const {
    throw InputError(bytes.path() + ":" + std::to_string(line) + ":" + std::to_string(column), reason, remedy);
  }
};

bool ends_cell(int byte) { return byte == ',' || byte == '\n' || byte == '\r' || byte == ByteSource::kEnd; }

// A cell that began with a quotation mark, which is taken already.
std::string read_quoted(ByteSource& bytes, const Place& begin, size_t room) {
  std::string cell;
  for (;;) {
    const int byte = bytes.peek();
    if (byte == ByteSource::kEnd) {
      begin.refuse("the quotation mark of this cell is not closed", "close it, or double the marks inside");
    }
    bytes.skip();
    if (byte == '"') {
      if (bytes.peek() != '"') break;
      bytes.skip();
    }
    cell.push_back(static_cast<char>(byte));
    if (cell.size() > room) begin.refuse("the row is longer than 64 MiB", "a quotation mark may be missing");
  }
  if (!ends_cell(bytes.peek())) {
    Place{bytes}.refuse("there is text behind the closing quotation mark", "double the marks inside of a cell");
  }
  return cell;
}

// The cells of one row with their line break; none for a blank line.
std::vector<std::string> read_cells(ByteSource& bytes) {
  std::vector<std::string> cells;
  size_t room = RecordReader::kMaxRecordBytes;
  bool quoted = false;
  for (;;) {
    const Place begin{bytes};
    std::string cell;
    if (bytes.peek() == '"') {
      bytes.skip();
      cell = read_quoted(bytes, begin, room);
      quoted = true;
    } else {
      for (int byte = bytes.peek(); !ends_cell(byte); byte = bytes.peek()) {
        cell.push_back(static_cast<char>(byte));
        bytes.skip();
        if (cell.size() > room) begin.refuse("the row is longer than 64 MiB", "is it a CSV file?");
      }
    }
    if (first_invalid_utf8(cell) < cell.size()) begin.refuse("is not UTF-8", "save the file as UTF-8");
    room -= cell.size();
    cells.push_back(std::move(cell));
    const int byte = bytes.peek();
    if (byte == ',') {
      bytes.skip();
      continue;
    }
    if (byte == '\r') bytes.skip();
    if (bytes.peek() == '\n') bytes.skip();
    break;
  }
  if (cells.size() == 1 && cells.front().empty() && !quoted) cells.clear();
  return cells;
}

}  // namespace

CsvColumns read_csv_header(ByteSource& bytes) {
  CsvColumns columns;
  while (columns.empty() && bytes.peek() != ByteSource::kEnd) columns = read_cells(bytes);
  if (columns.size() == 1 && columns.front().find_first_of(";\t") != std::string::npos) {
    throw InputError(bytes.path(), "has no comma in its first line", "separate the cells by commas");
  }
  for (size_t i = 0; i < columns.size(); ++i) {
    if (std::find(columns.begin(), columns.begin() + static_cast<std::ptrdiff_t>(i), columns[i]) !=
        columns.begin() + static_cast<std::ptrdiff_t>(i)) {
      throw InputError(bytes.path(), "has two columns named \"" + columns[i].substr(0, 40) + "\"", "rename one");
    }
  }
  return columns;
}

bool read_csv_row(ByteSource& bytes, const CsvColumns& columns, RawRecord& record) {
  std::vector<std::string> cells;
  while (cells.empty()) {
    if (bytes.peek() == ByteSource::kEnd) return false;
    record.line = bytes.line();
    record.column = bytes.column();
    cells = read_cells(bytes);
  }
  record.text = "{";
  if (cells.size() != columns.size()) {
    throw InputError(
        record_place(bytes.path(), record),
        "has " + count_text(std::ssize(cells), "cell") + ", the first line " + std::to_string(columns.size()),
        "put cells with commas or line breaks in quotation marks");
  }
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) record.text.push_back(',');
    append_json(record.text, std::string_view(columns[i]));
    record.text.push_back(':');
    append_json(record.text, std::string_view(cells[i]));
  }
  record.text.push_back('}');
  return true;
}

}  // namespace nibble
