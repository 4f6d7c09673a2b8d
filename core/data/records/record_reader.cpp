#include "nibble/core/data/records/record_reader.h"

#include <algorithm>
#include <string_view>

#include "nibble/core/base/error.h"
#include "nibble/core/data/records/byte_source.h"
#include "nibble/core/data/tables/csv.h"
#include "nibble/core/data/tables/table_file.h"
#include "nibble/core/text/unicode/utf8.h"

namespace nibble {

namespace {

constexpr std::string_view kDocumentMark = "<|endoftext|>";

bool is_json_space(int byte) { return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r'; }

void skip_space(ByteSource& bytes) {
  while (is_json_space(bytes.peek())) bytes.skip();
}

std::string place_of(const ByteSource& bytes) {
  return bytes.path() + ":" + std::to_string(bytes.line()) + ":" + std::to_string(bytes.column());
}

// Leaves `bytes` behind a UTF-8 byte order mark; other encodings are named, since their errors would be puzzling.
void skip_byte_order_mark(ByteSource& bytes) {
  const int first = bytes.peek();
  if (first == 0xFE || first == 0xFF) {
    throw InputError(bytes.path(), "is not UTF-8 (it begins like UTF-16)", "save it as UTF-8");
  }
  if (first != 0xEF) return;
  for (const int expected : {0xEF, 0xBB, 0xBF}) {
    if (bytes.peek() != expected) throw InputError(place_of(bytes), "is not UTF-8", "save the file as UTF-8");
    bytes.skip();
  }
  bytes.restart_line();
}

}  // namespace

std::string record_place(const std::string& path, const RawRecord& record, size_t byte) {
  if (record.column == 0) return path + ":row " + std::to_string(record.line);
  int64_t line = record.line, column = record.column;
  for (size_t i = 0; i < std::min(byte, record.text.size()); ++i) {
    const char c = record.text[i];
    if (c == '\n') {
      ++line;
      column = 1;
    } else {
      column += (c & 0xC0) != 0x80;
    }
  }
  return path + ":" + std::to_string(line) + ":" + std::to_string(column);
}

struct RecordReader::Impl {
  enum class Kind { lines, array, text, csv };

  explicit Impl(std::string path) : bytes(std::move(path)) {}

  ByteSource bytes;
  CsvColumns columns;
  Kind kind = Kind::lines;
  bool begun = false;
  bool ended = false;

  bool next_line(RawRecord& record);
  bool next_element(RawRecord& record);
  bool next_document(RawRecord& record);
  void read_value(RawRecord& record);
  void take(RawRecord& record);
  [[noreturn]] void too_long(const RawRecord& record, size_t cap, const std::string& remedy) const;
};

void RecordReader::Impl::too_long(const RawRecord& record, size_t cap, const std::string& remedy) const {
  throw InputError(record_place(bytes.path(), record), "is longer than " + std::to_string(cap >> 20) + " MiB", remedy);
}

void RecordReader::Impl::take(RawRecord& record) {
  if (record.text.size() >= kMaxRecordBytes) too_long(record, kMaxRecordBytes, "split the record");
  record.text.push_back(static_cast<char>(bytes.peek()));
  bytes.skip();
}

bool RecordReader::Impl::next_line(RawRecord& record) {
  for (;;) {
    if (bytes.peek() == ByteSource::kEnd) return false;
    record.text.clear();
    record.line = bytes.line();
    record.column = bytes.column();
    while (bytes.append_line_part(record.text)) {
      if (record.text.size() > kMaxRecordBytes) {
        too_long(record, kMaxRecordBytes, "a .jsonl file has one object a line");
      }
      if (bytes.peek() == '\n') {
        bytes.skip();
        break;
      }
    }
    if (!record.text.empty() && record.text.back() == '\r') record.text.pop_back();
    if (record.text.find_first_not_of(" \t\r") != std::string::npos) return true;
  }
}

// One JSON value of an array, by its brackets and strings alone; what is in it is checked when it is parsed.
void RecordReader::Impl::read_value(RawRecord& record) {
  int64_t depth = 0;
  for (;;) {
    const int byte = bytes.peek();
    if (byte == ByteSource::kEnd) {
      throw InputError(record_place(bytes.path(), record), "the file ends inside this record", "it may be cut off");
    }
    if (depth == 0 && (byte == ',' || byte == ']' || is_json_space(byte))) return;
    take(record);
    if (byte == '"') {
      for (int inside = bytes.peek(); inside != '"'; inside = bytes.peek()) {
        if (inside == ByteSource::kEnd) {
          throw InputError(record_place(bytes.path(), record), "the file ends inside this record",
                           "it may be cut off, or a quotation mark is missing");
        }
        take(record);
        if (inside == '\\' && bytes.peek() != ByteSource::kEnd) take(record);
      }
      take(record);
    } else if (byte == '{' || byte == '[') {
      ++depth;
    } else if (byte == '}' || byte == ']') {
      --depth;
    }
    if (depth <= 0 && (byte == '}' || byte == ']' || byte == '"')) return;
  }
}

bool RecordReader::Impl::next_element(RawRecord& record) {
  skip_space(bytes);
  if (!begun) {
    bytes.skip();  // the '[' that made this an array
    begun = true;
    skip_space(bytes);
    if (bytes.peek() == ']') ended = true;
  } else if (bytes.peek() == ',') {
    bytes.skip();
    skip_space(bytes);
  } else if (bytes.peek() == ']') {
    ended = true;
  } else {
    throw InputError(place_of(bytes), bytes.peek() == ByteSource::kEnd ? "the array is not closed" : "expected , or ]",
                     bytes.peek() == ByteSource::kEnd ? "the file may be cut off" : "");
  }
  if (ended) {
    bytes.skip();
    skip_space(bytes);
    if (bytes.peek() != ByteSource::kEnd) {
      throw InputError(place_of(bytes), "there is text after the array", "a .json data file is one array of objects");
    }
    return false;
  }
  record.text.clear();
  record.line = bytes.line();
  record.column = bytes.column();
  read_value(record);
  if (record.text.empty()) throw InputError(place_of(bytes), "expected a record", "remove the extra comma");
  return true;
}

bool RecordReader::Impl::next_document(RawRecord& record) {
  while (bytes.peek() != ByteSource::kEnd) {
    while (bytes.peek() == '\n' || bytes.peek() == '\r') bytes.skip();
    std::string& text = record.text;
    text.clear();
    record.line = bytes.line();
    record.column = bytes.column();
    for (int byte = bytes.peek(); byte != ByteSource::kEnd; byte = bytes.peek()) {
      if (byte == '\n') {
        if (!text.empty() && text.back() == '\r') text.pop_back();
        text.push_back('\n');
        bytes.skip();
      } else if (byte == '>') {
        text.push_back('>');
        bytes.skip();
        if (text.ends_with(kDocumentMark)) {
          text.resize(text.size() - kDocumentMark.size());
          break;
        }
      } else {
        text.push_back(static_cast<char>(byte));
        bytes.skip();
      }
      if (text.size() > kMaxDocumentBytes) {
        too_long(record, kMaxDocumentBytes, "put <|endoftext|> between documents, or use several files");
      }
    }
    if (const size_t bad = first_invalid_utf8(text); bad < text.size()) {
      throw InputError(record_place(bytes.path(), record, bad), "is not UTF-8", "save the file as UTF-8");
    }
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
    if (text.find_first_not_of(" \t\r\n") != std::string::npos) return true;
  }
  return false;
}

RecordReader::RecordReader(std::string path) {
  const std::string type = data_type(path);
  if (type == ".parquet") {
    table_ = open_parquet(path);
  } else if (type == ".arrow") {
    table_ = open_arrow(path);
  }
  if (table_) return;
  impl_ = std::make_unique<Impl>(std::move(path));
  skip_byte_order_mark(impl_->bytes);
  if (type == ".txt") {
    impl_->kind = Impl::Kind::text;
  } else if (type == ".csv") {
    impl_->kind = Impl::Kind::csv;
    impl_->columns = read_csv_header(impl_->bytes);
  } else {
    skip_space(impl_->bytes);
    if (impl_->bytes.peek() == '[') impl_->kind = Impl::Kind::array;
  }
}

RecordReader::~RecordReader() = default;

const std::string& RecordReader::path() const { return table_ ? table_->path() : impl_->bytes.path(); }
bool RecordReader::is_text() const { return impl_ && impl_->kind == Impl::Kind::text; }
uint64_t RecordReader::hash() const { return table_ ? table_->hash() : impl_->bytes.hash(); }
uint64_t RecordReader::bytes() const { return table_ ? table_->bytes() : impl_->bytes.bytes(); }

bool RecordReader::next(RawRecord& record) {
  if (table_) return table_->next(record);
  switch (impl_->kind) {
    case Impl::Kind::lines:
      return impl_->next_line(record);
    case Impl::Kind::array:
      return impl_->next_element(record);
    case Impl::Kind::csv:
      return read_csv_row(impl_->bytes, impl_->columns, record);
    default:
      return impl_->next_document(record);
  }
}

}  // namespace nibble
