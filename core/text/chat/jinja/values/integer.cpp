#include "nibble/core/text/chat/jinja/values/integer.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "nibble/core/text/chat/jinja/failure.h"

namespace nibble::jinja {

namespace {

using Limbs = std::vector<uint32_t>;

void trim(Limbs& limbs) {
  while (!limbs.empty() && limbs.back() == 0) limbs.pop_back();
}

int compare_limbs(const Limbs& a, const Limbs& b) {
  if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
  for (size_t k = a.size(); k-- > 0;) {
    if (a[k] != b[k]) return a[k] < b[k] ? -1 : 1;
  }
  return 0;
}

Limbs add_limbs(const Limbs& a, const Limbs& b) {
  Limbs sum;
  uint64_t carry = 0;
  for (size_t k = 0; k < std::max(a.size(), b.size()) || carry != 0; ++k) {
    carry += (k < a.size() ? a[k] : 0ULL) + (k < b.size() ? b[k] : 0ULL);
    sum.push_back(static_cast<uint32_t>(carry));
    carry >>= 32;
  }
  return sum;
}

// a - b where a >= b.
Limbs subtract_limbs(const Limbs& a, const Limbs& b) {
  Limbs difference(a.size());
  int64_t borrow = 0;
  for (size_t k = 0; k < a.size(); ++k) {
    int64_t d = static_cast<int64_t>(a[k]) - (k < b.size() ? b[k] : 0) - borrow;
    borrow = d < 0 ? 1 : 0;
    difference[k] = static_cast<uint32_t>(d + (borrow << 32));
  }
  trim(difference);
  return difference;
}

Limbs multiply_limbs(const Limbs& a, const Limbs& b) {
  Limbs product(a.size() + b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    uint64_t carry = 0;
    for (size_t j = 0; j < b.size() || carry != 0; ++j) {
      carry += product[i + j] + static_cast<uint64_t>(a[i]) * (j < b.size() ? b[j] : 0);
      product[i + j] = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
  }
  trim(product);
  return product;
}

// In place by one limb; returns the rest.
uint32_t divide_by_limb(Limbs& limbs, uint32_t divisor) {
  uint64_t rest = 0;
  for (size_t k = limbs.size(); k-- > 0;) {
    rest = rest << 32 | limbs[k];
    limbs[k] = static_cast<uint32_t>(rest / divisor);
    rest %= divisor;
  }
  trim(limbs);
  return static_cast<uint32_t>(rest);
}

// Bit by bit: numbers this long are rare.
void divide_limbs(const Limbs& a, const Limbs& b, Limbs& quotient, Limbs& rest) {
  quotient.assign(a.size(), 0);
  rest.clear();
  for (size_t bit = a.size() * 32; bit-- > 0;) {
    uint32_t carry = a[bit / 32] >> (bit % 32) & 1;
    for (uint32_t& limb : rest) {
      const uint32_t top = limb >> 31;
      limb = limb << 1 | carry;
      carry = top;
    }
    if (carry != 0) rest.push_back(carry);
    if (compare_limbs(rest, b) >= 0) {
      rest = subtract_limbs(rest, b);
      quotient[bit / 32] |= 1U << (bit % 32);
    }
  }
  trim(quotient);
}

}  // namespace

Integer Integer::from(bool negative, Limbs limbs) {
  trim(limbs);
  if (limbs.size() * 32 > kMaxBits + 32) throw Failure("a number gets too large");
  const uint64_t low = (limbs.empty() ? 0 : limbs[0]) | (limbs.size() > 1 ? uint64_t{limbs[1]} << 32 : 0);
  if (limbs.size() <= 2 && low <= (negative ? uint64_t{1} << 63 : uint64_t{INT64_MAX}))
    return Integer(static_cast<int64_t>(negative ? 0 - low : low));
  Integer result;
  result.negative_ = negative;
  result.big_ = std::make_shared<const Limbs>(std::move(limbs));
  return result;
}

Integer::Limbs Integer::magnitude() const {
  if (big_) return *big_;
  const uint64_t value = small_ < 0 ? 0 - static_cast<uint64_t>(small_) : static_cast<uint64_t>(small_);
  Limbs limbs{static_cast<uint32_t>(value), static_cast<uint32_t>(value >> 32)};
  trim(limbs);
  return limbs;
}

std::optional<Integer> Integer::parse(std::string_view digits, unsigned base) {
  if (digits.empty() || digits.size() > 4300) return std::nullopt;
  Limbs limbs;
  for (const char c : digits) {
    const unsigned digit = c >= '0' && c <= '9'   ? static_cast<unsigned>(c - '0')
                           : c >= 'a' && c <= 'z' ? static_cast<unsigned>(c - 'a' + 10)
                           : c >= 'A' && c <= 'Z' ? static_cast<unsigned>(c - 'A' + 10)
                                                  : 36;
    if (digit >= base) return std::nullopt;
    uint64_t carry = digit;
    for (uint32_t& limb : limbs) {
      carry += static_cast<uint64_t>(limb) * base;
      limb = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
    if (carry != 0) limbs.push_back(static_cast<uint32_t>(carry));
  }
  return from(false, std::move(limbs));
}

Integer Integer::truncated(double value) {
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(std::trunc(value)), &exponent);  // in [0.5, 1)
  const auto mantissa = static_cast<uint64_t>(std::ldexp(fraction, 53));
  Limbs limbs{static_cast<uint32_t>(mantissa), static_cast<uint32_t>(mantissa >> 32)};
  trim(limbs);
  if (exponent < 53) {
    const uint64_t whole = exponent <= 0 ? 0 : mantissa >> (53 - exponent);
    limbs = {static_cast<uint32_t>(whole), static_cast<uint32_t>(whole >> 32)};
  } else {
    Limbs scale(static_cast<size_t>(exponent - 53) / 32 + 1);
    scale.back() = 1U << ((exponent - 53) % 32);
    limbs = multiply_limbs(limbs, scale);
  }
  return from(value < 0, std::move(limbs));
}

std::string Integer::decimal() const {
  if (!big_) return std::to_string(small_);
  Limbs limbs = *big_;
  std::string text;
  while (!limbs.empty()) {
    uint32_t part = divide_by_limb(limbs, 1000000000);
    for (int k = 0; k < 9 && (part != 0 || !limbs.empty()); ++k, part /= 10)
      text.push_back(static_cast<char>('0' + part % 10));
  }
  if (text.size() > 4300) throw Failure("Exceeds the limit (4300 digits) for integer string conversion");
  if (negative_) text.push_back('-');
  std::reverse(text.begin(), text.end());
  return text;
}

std::string Integer::digits(unsigned base) const {
  Limbs limbs = magnitude();
  std::string text;
  while (!limbs.empty()) text.push_back("0123456789abcdef"[divide_by_limb(limbs, base)]);
  if (text.empty()) text = "0";
  if (is_negative()) text.push_back('-');
  std::reverse(text.begin(), text.end());
  return text;
}

double Integer::to_double() const {
  if (!big_) return static_cast<double>(small_);
  return std::strtod(decimal().c_str(), nullptr);
}

Integer Integer::negated() const {
  if (!big_ && small_ != INT64_MIN) return Integer(-small_);
  return from(!is_negative(), magnitude());
}

Integer operator+(const Integer& a, const Integer& b) {
  int64_t sum = 0;
  if (!a.big_ && !b.big_ && !__builtin_add_overflow(a.small_, b.small_, &sum)) return Integer(sum);
  const Limbs x = a.magnitude(), y = b.magnitude();
  if (a.is_negative() == b.is_negative()) return Integer::from(a.is_negative(), add_limbs(x, y));
  const bool first = compare_limbs(x, y) >= 0;
  return Integer::from(first ? a.is_negative() : b.is_negative(), first ? subtract_limbs(x, y) : subtract_limbs(y, x));
}

Integer operator*(const Integer& a, const Integer& b) {
  int64_t product = 0;
  if (!a.big_ && !b.big_ && !__builtin_mul_overflow(a.small_, b.small_, &product)) return Integer(product);
  return Integer::from(a.is_negative() != b.is_negative(), multiply_limbs(a.magnitude(), b.magnitude()));
}

void Integer::divide(const Integer& a, const Integer& b, Integer& quotient, Integer& rest) {
  if (b.is_zero()) throw Failure("integer division or modulo by zero");
  Limbs q, r;
  divide_limbs(a.magnitude(), b.magnitude(), q, r);
  quotient = from(a.is_negative() != b.is_negative(), std::move(q));
  rest = from(a.is_negative(), std::move(r));
  if (rest.is_zero() || rest.is_negative() == b.is_negative()) return;
  quotient = quotient - Integer(1);
  rest = rest + b;
}

Integer Integer::power(const Integer& exponent) const {
  const Integer one(1);
  if (*this == one || exponent.is_zero()) return one;
  if (is_zero()) return *this;
  if (!exponent.small() || *exponent.small() > static_cast<int64_t>(kMaxBits)) {
    if (*this == Integer(-1)) {
      Integer half, odd;
      divide(exponent, 2, half, odd);
      return odd.is_zero() ? one : *this;
    }
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
  if (a.is_negative() != b.is_negative()) return a.is_negative() ? -1 : 1;
  const int order = compare_limbs(a.magnitude(), b.magnitude());
  return a.is_negative() ? -order : order;
}

}  // namespace nibble::jinja
