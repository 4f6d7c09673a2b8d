#include "nibble/core/data/records/json_record.h"

#include "nibble/core/base/error.h"
#include "nibble/core/io/json/mistaken_file.h"
#include "nibble/core/text/matching/nearest.h"
#include "nibble/core/text/unicode/utf8.h"

namespace nibble {

namespace {

// Json::parse would round integers beyond 64 bits to floats.
class ExactReader final : public nlohmann::json_sax<Json> {
 public:
  Json value;
  size_t failed_at = 0;
  std::string error;
  bool too_large = false;

  bool null() override { return add(nullptr); }
  bool boolean(bool truth) override { return add(truth); }
  bool number_integer(number_integer_t number) override { return add(number); }
  bool number_unsigned(number_unsigned_t number) override { return add(number); }
  bool number_float(number_float_t number, const string_t& digits) override {
    if (digits.find_first_of(".eE") != digits.npos) return add(number);
    return add(Json::binary({digits.begin(), digits.end()}));
  }
  bool string(string_t& text) override { return add(std::move(text)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return add(Json::object()); }
  bool start_array(size_t) override { return add(Json::array()); }
  bool key(string_t& name) override {
    key_ = std::move(name);
    return true;
  }
  bool end_object() override {
    open_.pop_back();
    return true;
  }
  bool end_array() override { return end_object(); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& exception) override {
    failed_at = position;
    error = exception.what();
    too_large = dynamic_cast<const Json::out_of_range*>(&exception) != nullptr;
    return false;
  }

 private:
  bool add(Json element) {
    Json* place = &value;
    if (!open_.empty()) place = open_.back()->is_array() ? &open_.back()->emplace_back() : &(*open_.back())[key_];
    *place = std::move(element);
    if (place->is_structured()) open_.push_back(place);
    return true;
  }

  std::vector<Json*> open_;
  std::string key_;
};

// The byte at which brackets get too deep, or npos. A record of nothing but brackets would take some 80 bytes of memory
// for each.
size_t find_too_deep(const std::string& text) {
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') {
      for (++i; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\';
    } else if (text[i] == '{' || text[i] == '[') {
      if (++depth > kMaxRecordDepth) return i;
    } else if (text[i] == '}' || text[i] == ']') {
      --depth;
    }
  }
  return std::string::npos;
}

// "[json.exception.parse_error.101] parse error at ...: syntax error while parsing value - invalid literal; last read:
// '...'; expected ..." in fewer words: our message has a place of its own, and what was read may be long.
std::string parse_reason(const std::string& message) {
  const size_t dash = message.find(" - ");
  const size_t begin = dash == std::string::npos ? 0 : dash + 3;
  const size_t end = message.find("; ", begin);
  return "is not JSON: " + message.substr(begin, std::min(end, begin + 160) - begin);
}

[[noreturn]] void refuse_json(const std::string& path, const RawRecord& raw, size_t byte, const std::string& reason,
                              const std::string& otherwise) {
  const std::string place = record_place(path, raw, byte);
  const bool first = raw.line == 1;
  if (const auto other = mistaken_file(raw.text); other && first) throw InputError(path, other->reason, other->remedy);
  if (first && byte == 0 && raw.text.find(',') != std::string::npos && raw.text.find('{') == std::string::npos) {
    throw InputError(place, "is not JSON, it looks like CSV", "give the file a name that ends with .csv");
  }
  if (first && byte >= raw.text.size() && (raw.text.starts_with('{') || raw.text.starts_with('['))) {
    throw InputError(
        place, reason,
        "write each record on one line, or all of them in [ ] with commas between; or the file is cut off");
  }
  const std::string remedy = json_remedy(raw.text, byte);
  throw InputError(place, reason, (remedy.empty() ? "correct the record" : remedy) + otherwise);
}

}  // namespace

Json parse_embedded_json(const std::string& text) {
  if (find_too_deep(text) != std::string::npos) return Json(Json::value_t::discarded);
  ExactReader reader;
  return Json::sax_parse(text, &reader) ? std::move(reader.value) : Json(Json::value_t::discarded);
}

std::string json_text(const Json& value, bool ascii) {
  if (value.is_binary()) return {value.get_binary().begin(), value.get_binary().end()};
  if (!value.is_structured()) return value.dump(-1, ' ', ascii, Json::error_handler_t::replace);
  std::string text;
  for (const auto& [name, element] : value.items()) {
    if (!text.empty()) text += ',';
    if (value.is_object()) text += json_text(name, ascii) + ':';
    text += json_text(element, ascii);
  }
  return value.is_object() ? '{' + text + '}' : '[' + text + ']';
}

Json parse_record(const std::string& path, const RawRecord& raw, const std::string& otherwise) {
  const std::string remedy = "correct the record" + otherwise;
  if (const size_t bad = first_invalid_utf8(raw.text); bad < raw.text.size()) {
    throw InputError(record_place(path, raw, bad), "is not UTF-8", "save the file as UTF-8" + otherwise);
  }
  if (const size_t deep = find_too_deep(raw.text); deep != std::string::npos) {
    throw InputError(record_place(path, raw, deep),
                     "more than " + std::to_string(kMaxRecordDepth) + " brackets inside each other", remedy);
  }
  ExactReader reader;
  if (!Json::sax_parse(raw.text, &reader)) {
    if (reader.too_large) throw InputError(record_place(path, raw), "has a number that is too large", remedy);
    refuse_json(path, raw, reader.failed_at == 0 ? 0 : reader.failed_at - 1, parse_reason(reader.error), otherwise);
  }
  return std::move(reader.value);
}

JsonRecord::JsonRecord(const std::string& path, const RawRecord& raw, const std::map<std::string, std::string>& fields)
    : path_(path), raw_(raw), fields_(fields), object_(parse_record(path, raw, ", or set data.skip_bad")) {
  if (!object_.is_object()) {
    fail(std::string("a record is a JSON object, this is ") + object_.type_name(),
         "a data file has one object a line or one array of objects");
  }
}

const std::string& JsonRecord::file_name(const std::string& name) const {
  const auto renamed = fields_.find(name);
  return renamed == fields_.end() ? name : renamed->second;
}

const Json* JsonRecord::find(const std::string& name) const {
  if (!fields_.empty()) asked_.insert(name);
  const auto found = object_.find(file_name(name));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::string JsonRecord::text(const std::string& name) const {
  const Json* value = find(name);
  if (value == nullptr) fail_missing(name);
  if (!value->is_string()) fail_type(file_name(name), *value, "a string");
  return value->get<std::string>();
}

std::string JsonRecord::optional_text(const std::string& name) const { return has(name) ? text(name) : std::string(); }

const Json& JsonRecord::array(const std::string& name) const {
  const Json* value = find(name);
  if (value == nullptr) fail_missing(name);
  if (!value->is_array()) fail_type(file_name(name), *value, "an array");
  return *value;
}

void JsonRecord::take_fields_of(const std::string& name) {
  const Json* inner = find(name);
  if (inner == nullptr) fail_missing(name);
  if (!inner->is_object()) fail_type(file_name(name), *inner, "an object");
  object_.update(Json(*inner));
}

std::string JsonRecord::field_names() const {
  std::string names;
  for (const auto& item : object_.items()) {
    names += (names.empty() ? "\"" : ", \"") + item.key().substr(0, 40) + (item.value().is_null() ? "\" (null)" : "\"");
  }
  return names.empty() ? "no field" : names;
}

void JsonRecord::refuse_unknown_columns() const {
  for (const auto& [name, column] : fields_) {
    if (object_.contains(column)) continue;
    fail("data.fields (--fields) calls " + name + " \"" + column + "\", which is not there",
         "the record has " + field_names());
  }
}

void JsonRecord::refuse_unread_fields(const std::string& reader, const std::vector<std::string>& asked) const {
  if (fields_.empty()) return;
  const std::string& name = fields_.begin()->first;
  const std::string near = nearest(name, asked);
  fail("data.fields (--fields) names \"" + name + "\", which " + reader + " has no use for",
       near.empty() ? "leave it out, or name data.format (--format)" : "did you mean " + near + "?");
}

void JsonRecord::fail_missing(const std::string& name) const {
  const auto found = object_.find(file_name(name));
  fail("field \"" + file_name(name) + "\" is " + (found == object_.end() ? "missing" : "null"),
       "the record has " + field_names() + "; set data.format or data.fields (--format, --fields), or correct it");
}

void JsonRecord::fail(const std::string& reason, const std::string& remedy) const {
  throw InputError(record_place(path_, raw_), reason, remedy);
}

void JsonRecord::fail_type(const std::string& name, const Json& value, const std::string& expected) const {
  fail("field \"" + name + "\" is " + (value.is_binary() ? "number" : value.type_name()) + ", expected " + expected,
       "correct the record");
}

}  // namespace nibble
