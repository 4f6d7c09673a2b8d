#include "nibble/core/text/chat/jinja/arguments.h"

#include <algorithm>

#include "nibble/core/text/chat/jinja/failure.h"

namespace nibble::jinja {

Bound::Bound(std::string_view function, Arguments& arguments, std::initializer_list<std::string_view> parameters,
             size_t required)
    : function_(function), values_(parameters.size()), given_(parameters.size()) {
  if (arguments.positional.size() > parameters.size())
    throw Failure(function_ + "() takes at most " + std::to_string(parameters.size()) + " arguments (" +
                  std::to_string(arguments.positional.size()) + " given)");
  for (size_t k = 0; k < arguments.positional.size(); ++k) {
    values_[k] = std::move(arguments.positional[k]);
    given_[k] = true;
  }
  for (auto& [name, value] : arguments.named) {
    const auto* parameter = std::find(parameters.begin(), parameters.end(), name);
    if (parameter == parameters.end())
      throw Failure(function_ + "() got an unexpected keyword argument '" + name + "'");
    const auto k = static_cast<size_t>(parameter - parameters.begin());
    if (given_[k]) throw Failure(function_ + "() got multiple values for argument '" + name + "'");
    values_[k] = std::move(value);
    given_[k] = true;
  }
  for (size_t k = 0; k < required; ++k) {
    if (!given_[k])
      throw Failure(function_ + "() missing a required argument: '" + std::string(parameters.begin()[k]) + "'");
  }
}

int64_t Bound::integer(size_t k, int64_t otherwise) const { return has(k) ? to_index(values_[k]) : otherwise; }
const std::string& Bound::text(size_t k) const { return to_text(values_[k]); }

std::string Bound::text(size_t k, std::string_view otherwise) const {
  return has(k) ? to_text(values_[k]) : std::string(otherwise);
}

int64_t to_index(const Value& value) {
  if (value.is_undefined()) throw Failure(value.undefined_message());
  if (!value.is_index()) throw Failure("'" + value.type() + "' object cannot be interpreted as an integer");
  const std::optional<int64_t> small = value.as_integer().small();
  if (!small) throw Failure("Python int too large to convert to C ssize_t");
  return *small;
}

const std::string& to_text(const Value& value) {
  if (value.is_undefined()) throw Failure(value.undefined_message());
  if (!value.is_text()) throw Failure("expected str, got " + value.type());
  return value.as_text();
}

}  // namespace nibble::jinja
