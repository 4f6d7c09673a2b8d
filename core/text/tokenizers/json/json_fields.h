#pragma once
// Reading members of a JSON object with errors that name the place: "tokenizer.json: model.merges[3]: ...".
// For .cpp files of tokenizers/.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "nibble/core/io/json/json_file.h"

namespace nibble {

/// What a tokenizer's files may be.
inline constexpr JsonLimits kTokenizerLimits{
    .max_bytes = size_t{256} << 20, .python_numbers = true, .join_merges = true};

/// The object in a file; an empty one where there is no file. Throws InputError for anything else in it.
nlohmann::json read_object_if_there(const std::filesystem::path& path);

/// A step of a pipeline, those of a Sequence (in its `members`) laid flat; none of null.
std::vector<nlohmann::json> flat_steps(const nlohmann::json& step, const char* members);

class JsonFields {
 public:
  JsonFields(const nlohmann::json& value, std::string file, std::string path = "")
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {}

  const nlohmann::json& value() const { return *value_; }

  /// "file: path", for errors further down.
  std::string place() const { return path_.empty() ? file_ : file_ + ": " + path_; }
  [[noreturn]] void fail(const std::string& reason) const;

  /// True when the member is there and not null.
  bool has(const std::string& key) const;
  /// The member; InputError when it is absent.
  JsonFields at(const std::string& key) const;
  /// Element of an array.
  JsonFields item(size_t index) const;
  /// Number of elements; InputError when this is no array.
  size_t size() const;

  std::string string() const;
  int64_t integer() const;
  bool boolean() const;
  std::string string(const std::string& key) const { return at(key).string(); }
  std::string string_or(const std::string& key, const std::string& otherwise) const;
  int64_t integer_or(const std::string& key, int64_t otherwise) const;
  bool boolean_or(const std::string& key, bool otherwise) const;

 private:
  const nlohmann::json* value_;
  std::string file_, path_;
};

}  // namespace nibble
