#pragma once
// What goes wrong inside a template. For .cpp files of jinja/: JinjaTemplate turns it into an InputError with the
// line.

#include <stdexcept>
#include <string>

namespace nibble::jinja {

struct Failure : std::runtime_error {
  explicit Failure(const std::string& reason) : std::runtime_error(reason) {}
};

/// The template itself is wrong, at a line of it.
struct SyntaxFailure : Failure {
  SyntaxFailure(const std::string& reason, int at) : Failure(reason), line(at) {}
  int line;
};

}  // namespace nibble::jinja
