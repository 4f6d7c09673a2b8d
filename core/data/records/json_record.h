#pragma once
// A parsed JSON record that knows where it stands. For .cpp files: nlohmann::json stays out of the public headers.

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "nibble/core/data/records/record_reader.h"

namespace nibble {

/// Keeps the order of the file's keys, which chat templates show.
using Json = nlohmann::ordered_json;

/// JSON that a record holds as a string; discarded (no object, array, ...) where it is not JSON or too deep. Here and
/// in a JsonRecord an integer beyond 64 bits is binary: its digits.
Json parse_embedded_json(const std::string& text);
/// The text of such a value, integers with all their digits; with `ascii` in ASCII.
std::string json_text(const Json& value, bool ascii = false);

/// The value of a record, integers as above. Throws InputError with line and column of the first byte that is not JSON
/// (or not UTF-8), and for more than kMaxRecordDepth brackets inside each other. `otherwise`: what else a remedy may
/// say.
inline constexpr int kMaxRecordDepth = 64;
Json parse_record(const std::string& path, const RawRecord& raw, const std::string& otherwise = "");

class JsonRecord {
 public:
  /// Throws InputError as parse_record(), and where the value is not an object. `fields` renames our fields to the
  /// file's.
  JsonRecord(const std::string& path, const RawRecord& raw, const std::map<std::string, std::string>& fields);

  const Json& object() const { return object_; }
  /// What the file calls our field `name`.
  const std::string& file_name(const std::string& name) const;
  /// The value of our field `name`, or null when it is absent or null.
  const Json* find(const std::string& name) const;
  bool has(const std::string& name) const { return find(name) != nullptr; }
  /// A string field; throws InputError when it is missing or no string.
  std::string text(const std::string& name) const;
  /// As text(), empty when absent.
  std::string optional_text(const std::string& name) const;
  /// An array field; throws InputError when it is missing or no array.
  const Json& array(const std::string& name) const;
  /// Takes the fields of the object in our field `name` for the record's own; throws InputError where it is none.
  void take_fields_of(const std::string& name);

  /// "\"prompt\", \"completion\" (null)", for messages.
  std::string field_names() const;
  /// Throws InputError where a field is renamed to one that the record does not have.
  void refuse_unknown_columns() const;
  /// Throws InputError where a field is renamed; `reader` asked for others.
  void refuse_unread_fields(const std::string& reader, const std::vector<std::string>& asked) const;
  /// The fields that were asked for so far; none where no field is renamed.
  const std::set<std::string>& asked() const { return asked_; }
  /// Throws InputError at this record.
  [[noreturn]] void fail(const std::string& reason,
                         const std::string& remedy = "correct the record, or set data.skip_bad") const;
  [[noreturn]] void fail_type(const std::string& name, const Json& value, const std::string& expected) const;

 private:
  [[noreturn]] void fail_missing(const std::string& name) const;

  const std::string& path_;
  const RawRecord& raw_;
  const std::map<std::string, std::string>& fields_;
  mutable std::set<std::string> asked_;  // where there are fields_
  Json object_;
};

}  // namespace nibble
