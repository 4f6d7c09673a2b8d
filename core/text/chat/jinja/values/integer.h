#pragma once
// Whole numbers that do not overflow, as Python's: int64 while they fit, GMP's after. For .cpp files of jinja/.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace nibble::jinja {

class Integer {
 public:
  /// Bits of the largest number; Python itself refuses to print more than 4300 digits.
  static constexpr size_t kMaxBits = 16384;

  Integer() = default;
  Integer(int64_t value) : small_(value) {}  // NOLINT: numbers convert

  /// Digits of base 2 to 36, no sign or prefix. Nullopt when a digit is wrong or there is none.
  static std::optional<Integer> parse(std::string_view digits, unsigned base = 10);
  /// The whole part of a finite number.
  static Integer truncated(double value);

  std::string decimal() const;
  /// Digits of base 2, 8 or 16 in lower case with a minus sign where needed, no prefix.
  std::string digits(unsigned base) const;
  /// Nearest double; infinite when it is too large.
  double to_double() const;
  /// The value where it fits.
  std::optional<int64_t> small() const { return big_ ? std::nullopt : std::optional(small_); }

  bool is_zero() const { return !big_ && small_ == 0; }
  bool is_negative() const;
  Integer negated() const;

  /// These throw Failure above kMaxBits, and for division by zero.
  friend Integer operator+(const Integer& a, const Integer& b);
  friend Integer operator-(const Integer& a, const Integer& b) { return a + b.negated(); }
  friend Integer operator*(const Integer& a, const Integer& b);
  /// Rounded down, as Python's // and %.
  static void divide(const Integer& a, const Integer& b, Integer& quotient, Integer& rest);
  /// exponent >= 0.
  Integer power(const Integer& exponent) const;

  /// < 0, 0, > 0.
  static int compare(const Integer& a, const Integer& b);
  bool operator==(const Integer& other) const { return compare(*this, other) == 0; }

 private:
  struct Big;

  int64_t small_ = 0;
  std::shared_ptr<const Big> big_;
};

}  // namespace nibble::jinja
