#pragma once
// Arguments of a call, by the names of the parameters. For .cpp files of jinja/.

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/core/text/chat/jinja/values/value.h"

namespace nibble::jinja {

class Bound {
 public:
  /// Gives every parameter its argument, by position or name. Throws Failure for too many, unknown or twice given
  /// ones, and when one of the first `required` is missing.
  Bound(std::string_view function, Arguments& arguments, std::initializer_list<std::string_view> parameters,
        size_t required = 0);

  bool has(size_t k) const { return given_[k]; }
  /// None where it was not given.
  const Value& operator[](size_t k) const { return values_[k]; }

  bool truth(size_t k, bool otherwise) const { return has(k) ? values_[k].truth() : otherwise; }
  /// Of an integer or boolean that fits; Failure for other types.
  int64_t integer(size_t k, int64_t otherwise) const;
  /// Failure for other types.
  const std::string& text(size_t k) const;
  std::string text(size_t k, std::string_view otherwise) const;

 private:
  std::string function_;
  std::vector<Value> values_;
  std::vector<bool> given_;
};

/// A value as an index or count; Failure: "'str' object cannot be interpreted as an integer".
int64_t to_index(const Value& value);
/// A value that must be text.
const std::string& to_text(const Value& value);

}  // namespace nibble::jinja
