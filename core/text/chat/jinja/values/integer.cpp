#include "nibble/core/text/chat/jinja/values/integer.h"

#include <gmpxx.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "nibble/core/text/chat/jinja/failure.h"

namespace nibble::jinja {

namespace {

constexpr size_t kMostDigits = 4300;  // that Python reads and prints

}  // namespace

// What does not fit in 64 bits, and the way there and back.
struct Integer::Big {
  mpz_class value;

  static mpz_class of(const Integer& number) { return number.big_ ? number.big_->value : mpz_class(number.small_); }
  static Integer make(mpz_class value) {
    if (mpz_sizeinbase(value.get_mpz_t(), 2) > kMaxBits + 32) throw Failure("a number gets too large");
    if (value.fits_slong_p()) return Integer(value.get_si());
    Integer result;
    result.big_ = std::make_shared<const Big>(Big{std::move(value)});
    return result;
  }
};

std::optional<Integer> Integer::parse(std::string_view digits, unsigned base) {
  const auto is_digit = [base](char c) {
    const unsigned digit = c >= '0' && c <= '9'   ? static_cast<unsigned>(c - '0')
                           : c >= 'a' && c <= 'z' ? static_cast<unsigned>(c - 'a' + 10)
                           : c >= 'A' && c <= 'Z' ? static_cast<unsigned>(c - 'A' + 10)
                                                  : 36;
    return digit < base;
  };
  if (digits.empty() || digits.size() > kMostDigits || !std::ranges::all_of(digits, is_digit)) return std::nullopt;
  return Big::make(mpz_class(std::string(digits), static_cast<int>(base)));
}

Integer Integer::truncated(double value) {
  if (!std::isfinite(value)) {
    throw Failure(std::string("cannot convert float ") + (std::isnan(value) ? "NaN" : "infinity") + " to integer");
  }
  return Big::make(mpz_class(value));
}

std::string Integer::decimal() const {
  if (!big_) return std::to_string(small_);
  std::string text = digits(10);
  if (text.size() - (is_negative() ? 1 : 0) > kMostDigits)
    throw Failure("Exceeds the limit (4300 digits) for integer string conversion");
  return text;
}

std::string Integer::digits(unsigned base) const { return Big::of(*this).get_str(static_cast<int>(base)); }

double Integer::to_double() const {
  if (!big_) return static_cast<double>(small_);
  return std::strtod(decimal().c_str(), nullptr);
}

bool Integer::is_negative() const { return big_ ? sgn(big_->value) < 0 : small_ < 0; }

Integer Integer::negated() const {
  if (!big_ && small_ != INT64_MIN) return Integer(-small_);
  return Big::make(-Big::of(*this));
}

Integer operator+(const Integer& a, const Integer& b) {
  int64_t sum = 0;
  if (!a.big_ && !b.big_ && !__builtin_add_overflow(a.small_, b.small_, &sum)) return Integer(sum);
  return Integer::Big::make(Integer::Big::of(a) + Integer::Big::of(b));
}

Integer operator*(const Integer& a, const Integer& b) {
  int64_t product = 0;
  if (!a.big_ && !b.big_ && !__builtin_mul_overflow(a.small_, b.small_, &product)) return Integer(product);
  return Integer::Big::make(Integer::Big::of(a) * Integer::Big::of(b));
}

void Integer::divide(const Integer& a, const Integer& b, Integer& quotient, Integer& rest) {
  if (b.is_zero()) throw Failure("integer division or modulo by zero");
  mpz_class q, r;
  mpz_fdiv_qr(q.get_mpz_t(), r.get_mpz_t(), Big::of(a).get_mpz_t(), Big::of(b).get_mpz_t());
  quotient = Big::make(q);
  rest = Big::make(r);
}

Integer Integer::power(const Integer& exponent) const {
  const Integer one(1);
  if (*this == one || exponent.is_zero()) return one;
  if (is_zero()) return *this;
  if (!exponent.small() || *exponent.small() > static_cast<int64_t>(kMaxBits)) {
    if (*this == Integer(-1)) return mpz_even_p(Big::of(exponent).get_mpz_t()) ? one : *this;
    throw Failure("a number gets too large");
  }
  Integer result = one, square = *this;
  for (int64_t left = *exponent.small();;) {
    if ((left & 1) != 0) result = result * square;
    if ((left >>= 1) == 0) return result;
    square = square * square;
  }
}

int Integer::compare(const Integer& a, const Integer& b) {
  if (!a.big_ && !b.big_) return a.small_ < b.small_ ? -1 : a.small_ > b.small_ ? 1 : 0;
  return cmp(Big::of(a), Big::of(b));
}

}  // namespace nibble::jinja
