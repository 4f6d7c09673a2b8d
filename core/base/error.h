#pragma once
// The errors of nibble: one small hierarchy. The library throws, the command line turns an error into one line
// and an exit code; nothing in the library prints or exits.

#include <stdexcept>
#include <string>

namespace nibble {

/// Base of all errors. `place` is a file, `file:line`, a tensor, or a recipe key; `what` the reason; `remedy` what the
/// user can do (may be empty). what() reads "place: what; remedy".
class Error : public std::runtime_error {
 public:
  Error(const std::string& place, const std::string& reason, const std::string& remedy)
      : std::runtime_error(line(place, reason, remedy)) {}

  /// Exit code of the command line for this error.
  virtual int exit_code() const = 0;

 private:
  static std::string line(const std::string& place, const std::string& reason, const std::string& remedy) {
    return (place.empty() ? "" : place + ": ") + reason + (remedy.empty() ? "" : "; " + remedy);
  }
};

/// Wrong flag, recipe key or value: exit 2.
class UsageError : public Error {
 public:
  explicit UsageError(const std::string& reason, const std::string& remedy = "", const std::string& place = "")
      : Error(place, reason, remedy) {}
  int exit_code() const override { return 2; }
};

/// A file or data set whose content cannot be used: exit 3.
class InputError : public Error {
 public:
  InputError(const std::string& place, const std::string& reason, const std::string& remedy = "")
      : Error(place, reason, remedy) {}
  int exit_code() const override { return 3; }
};

/// Reading, writing, space, memory: exit 4.
class IoError : public Error {
 public:
  IoError(const std::string& place, const std::string& reason, const std::string& remedy = "")
      : Error(place, reason, remedy) {}
  int exit_code() const override { return 4; }
};

/// A loss, gradient or weight that is not finite: exit 5.
class NumericError : public Error {
 public:
  NumericError(const std::string& place, const std::string& reason, const std::string& remedy = "")
      : Error(place, reason, remedy) {}
  int exit_code() const override { return 5; }
};

/// Asked to stop (a signal, or Observer::stop_requested): what was done is saved, the run can be continued: exit 75.
class Interrupted : public Error {
 public:
  Interrupted(const std::string& place, const std::string& reason, const std::string& remedy = "")
      : Error(place, reason, remedy) {}
  int exit_code() const override { return 75; }
};

/// A rank that is lost or hangs: exit 76.
class CommError : public Error {
 public:
  CommError(const std::string& place, const std::string& reason, const std::string& remedy = "")
      : Error(place, reason, remedy) {}
  int exit_code() const override { return 76; }
};

namespace detail {
[[noreturn]] void check_failed(const char* condition, const char* file, int line, const std::string& message);
}

}  // namespace nibble

/// Internal invariant, asserted in debug and release: throws std::logic_error with the place in the source.
#define NIBBLE_CHECK(condition, message)                                                         \
  do {                                                                                           \
    if (!(condition)) ::nibble::detail::check_failed(#condition, __FILE__, __LINE__, (message)); \
  } while (false)
