#include "nibble/core/text/chat/jinja/values/value.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "nibble/core/text/chat/jinja/failure.h"
#include "nibble/core/text/chat/jinja/values/unicode_text.h"

namespace nibble::jinja {

namespace {

int checked_depth(int deepest) {
  if (deepest >= Value::kMaxDepth) throw Failure("values are nested too deep");
  return deepest + 1;
}

std::shared_ptr<const Sequence> make_sequence(Items items, bool group) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return std::make_shared<const Sequence>(Sequence{std::move(items), checked_depth(depth), group});
}

int compare_numbers(const Value& a, const Value& b) {
  if (a.is_index() && b.is_index()) return Integer::compare(a.as_integer(), b.as_integer());
  if (a.is_index()) {
    const int order = compare_numbers(b, a);
    return order == 2 ? 2 : -order;
  }
  const double x = a.as_floating();
  if (std::isnan(x) || (!b.is_index() && std::isnan(b.as_floating()))) return 2;
  if (!b.is_index()) return x < b.as_floating() ? -1 : x > b.as_floating() ? 1 : 0;
  if (std::isinf(x)) return x < 0 ? -1 : 1;
  const int order = Integer::compare(Integer::truncated(x), b.as_integer());
  if (order != 0) return order;
  return x < std::trunc(x) ? -1 : x > std::trunc(x) ? 1 : 0;
}

int compare_items(const Items& a, const Items& b, Budget& budget, std::string_view operation) {
  for (size_t k = 0; k < std::min(a.size(), b.size()); ++k) {
    if (!equal(a[k], b[k], budget)) return compare(a[k], b[k], budget, operation);
  }
  return a.size() < b.size() ? -1 : a.size() > b.size() ? 1 : 0;
}

bool equal_items(const Items& a, const Items& b, Budget& budget) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](const Value& x, const Value& y) { return equal(x, y, budget); });
}

bool equal_dicts(const Dict& a, const Dict& b, Budget& budget) {
  if (a.size() != b.size()) return false;
  return std::all_of(a.items().begin(), a.items().end(), [&](const auto& item) {
    const Value* other = b.find(item.first, budget);
    return other != nullptr && equal(item.second, *other, budget);
  });
}

bool equal_objects(Object& a, Object& b, Budget& budget) {
  if (&a == &b) return true;
  if (!a.is_sequence() || !b.is_sequence() || a.length() != b.length()) return false;
  Next mine = a.iterate(), theirs = b.iterate();  // of ranges
  for (Value x, y; mine(x) && theirs(y);) {
    if (!equal(x, y, budget)) return false;
  }
  return true;
}

size_t hash_of(std::string_view text) { return std::hash<std::string_view>()(text); }

}  // namespace

std::optional<Value> Object::attribute(std::string_view) { return std::nullopt; }
Value Object::call(Interpreter&, Arguments) { throw Failure("'" + type() + "' object is not callable"); }
Value Object::element(size_t) { throw Failure("'" + type() + "' object is not subscriptable"); }

Value Value::undefined(std::string message) {
  return Value(Data(std::make_shared<const Missing>(Missing{std::move(message)})));
}

Value Value::text(std::string bytes, bool markup) {
  return Value(Data(std::make_shared<const Text>(Text{std::move(bytes), markup})));
}

Value Value::list(Items items) { return Value(Data(make_sequence(std::move(items), false))); }

Value Value::tuple(Items items, bool group) { return Value(Data(Tuple{make_sequence(std::move(items), group)})); }

Value Value::dict(Dict dict) { return Value(Data(std::make_shared<const Dict>(std::move(dict)))); }

Integer Value::as_integer() const {
  return is(Kind::boolean) ? Integer(as_boolean() ? 1 : 0) : std::get<Integer>(data_);
}

const Sequence& Value::sequence() const {
  return is(Kind::tuple) ? *std::get<Tuple>(data_).sequence : *std::get<std::shared_ptr<const Sequence>>(data_);
}

bool Value::truth() const {
  switch (kind()) {
    case Kind::none:
    case Kind::undefined:
      return false;
    case Kind::boolean:
      return as_boolean();
    case Kind::integer:
      return !as_integer().is_zero();
    case Kind::floating:
      return as_floating() != 0;
    case Kind::text:
      return !as_text().empty();
    case Kind::list:
    case Kind::tuple:
      return !items().empty();
    case Kind::dict:
      return as_dict().size() > 0;
    default:
      return as_object()->length().value_or(1) > 0;
  }
}

std::string Value::type() const {
  constexpr std::array kNames = {"NoneType", "Undefined", "bool", "int", "float", "str", "list", "tuple", "dict"};
  if (is(Kind::object)) return as_object()->type();
  return is_markup() ? "Markup" : kNames.at(static_cast<size_t>(kind()));
}

int Value::depth() const {
  if (is_sequence()) return sequence().depth;
  if (is(Kind::dict)) return as_dict().depth();
  return is(Kind::object) ? as_object()->depth() : 0;
}

bool Value::same_as(const Value& other) const {
  if (kind() != other.kind()) return false;
  switch (kind()) {
    case Kind::text:
      return std::get<std::shared_ptr<const Text>>(data_) == std::get<std::shared_ptr<const Text>>(other.data_);
    case Kind::list:
    case Kind::tuple:
      return &sequence() == &other.sequence();
    case Kind::dict:
      return &as_dict() == &other.as_dict();
    case Kind::object:
      return as_object() == other.as_object();
    case Kind::undefined:
      return std::get<std::shared_ptr<const Missing>>(data_) == std::get<std::shared_ptr<const Missing>>(other.data_);
    default:
      return is_none() || compare_numbers(*this, other) == 0;
  }
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.visit();
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::text:
      budget.read(std::min(a.as_text().size(), b.as_text().size()));
      return a.as_text() == b.as_text();
    case Kind::list:
    case Kind::tuple:
      return &a.sequence() == &b.sequence() || equal_items(a.items(), b.items(), budget);
    case Kind::dict:
      return &a.as_dict() == &b.as_dict() || equal_dicts(a.as_dict(), b.as_dict(), budget);
    case Kind::object:
      return equal_objects(*a.as_object(), *b.as_object(), budget);
    default:
      return true;  // None, Undefined
  }
}

size_t Value::hash(Budget& budget) const {
  budget.visit();
  switch (kind()) {
    case Kind::boolean:
    case Kind::integer:
      return std::hash<double>()(jinja::to_double(*this));
    case Kind::floating:
      return std::hash<double>()(as_floating());
    case Kind::text:
      budget.read(as_text().size());
      return hash_of(as_text());
    case Kind::tuple: {
      size_t hash = 17;
      for (const Value& item : items()) hash = hash * 1000003 ^ item.hash(budget);
      return hash;
    }
    case Kind::list:
    case Kind::dict:
      throw Failure("unhashable type: '" + type() + "'");
    case Kind::object:
      return std::hash<const void*>()(as_object().get());
    default:
      return static_cast<size_t>(kind());
  }
}

void Dict::put(const std::pair<Value, Value>* known, size_t hash, Value key, Value value) {
  if (known) {
    depth_ = std::max(depth_, checked_depth(value.depth()));
    items_[static_cast<size_t>(known - items_.data())].second = std::move(value);
    return;
  }
  depth_ = std::max(depth_, checked_depth(std::max(key.depth(), value.depth())));
  items_.emplace_back(std::move(key), std::move(value));
  hashes_.push_back(hash);
  if (items_.size() == kIndexedFrom) {
    for (size_t k = 0; k + 1 < items_.size(); ++k) index_.emplace(hashes_[k], k);
  }
  if (items_.size() >= kIndexedFrom) index_.emplace(hash, items_.size() - 1);
}

void Dict::set(Value key, Value value, Budget& budget) {
  const size_t hash = key.hash(budget);
  const auto* known = entry(hash, [&](const Value& other) { return equal(other, key, budget); });
  put(known, hash, std::move(key), std::move(value));
}

void Dict::set(std::string_view key, Value value) {
  const size_t hash = hash_of(key);
  const auto* known = entry(hash, [&](const Value& other) { return other.is_text() && other.as_text() == key; });
  put(known, hash, Value::text(std::string(key)), std::move(value));
}

void Dict::erase(std::string_view key) {
  Dict rest;
  for (size_t k = 0; k < items_.size(); ++k) {
    auto& [name, value] = items_[k];
    if (!name.is_text() || name.as_text() != key) rest.put(nullptr, hashes_[k], std::move(name), std::move(value));
  }
  *this = std::move(rest);
}

template <typename Same>
const std::pair<Value, Value>* Dict::entry(size_t hash, const Same& same) const {
  if (items_.size() < kIndexedFrom) {
    for (size_t k = 0; k < items_.size(); ++k) {
      if (same(items_[k].first)) return &items_[k];
    }
    return nullptr;
  }
  const auto [begin, end] = index_.equal_range(hash);
  for (auto candidate = begin; candidate != end; ++candidate) {
    if (same(items_[candidate->second].first)) return &items_[candidate->second];
  }
  return nullptr;
}

const Value* Dict::find(const Value& key, Budget& budget) const {
  const auto* found = entry(key.hash(budget), [&](const Value& other) { return equal(other, key, budget); });
  return found ? &found->second : nullptr;
}

const Value* Dict::find(std::string_view key) const {
  const auto same = [&](const Value& other) { return other.is_text() && other.as_text() == key; };
  if (items_.size() >= kIndexedFrom) {
    const auto* found = entry(hash_of(key), same);
    return found ? &found->second : nullptr;
  }
  const auto found = std::find_if(items_.begin(), items_.end(), [&](const auto& item) { return same(item.first); });
  return found == items_.end() ? nullptr : &found->second;
}

int compare(const Value& a, const Value& b, Budget& budget, std::string_view operation) {
  budget.visit();
  if (a.is_undefined()) throw Failure(a.undefined_message());
  if (b.is_undefined()) throw Failure(b.undefined_message());
  if (a.is_number() && b.is_number()) return compare_numbers(a, b);
  if (a.is_text() && b.is_text()) {
    budget.read(std::min(a.as_text().size(), b.as_text().size()));
    const int order = a.as_text().compare(b.as_text());  // the order of UTF-8's bytes is that of code points
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  if (a.is_sequence() && a.kind() == b.kind()) return compare_items(a.items(), b.items(), budget, operation);
  throw Failure("'" + std::string(operation) + "' not supported between instances of '" + a.type() + "' and '" +
                b.type() + "'");
}

Next iterate(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
      return [](Value&) { return false; };
    case Kind::text:
      return [value, position = size_t{0}](Value& next) mutable {
        const std::string& bytes = value.as_text();
        if (position >= bytes.size()) return false;
        const size_t length = utf8_length(bytes[position]);
        next = Value::text(bytes.substr(position, length), value.is_markup());
        position += length;
        return true;
      };
    case Kind::list:
    case Kind::tuple:
      return [value, k = size_t{0}](Value& next) mutable {
        if (k >= value.items().size()) return false;
        next = value.items()[k++];
        return true;
      };
    case Kind::dict:
      return [value, k = size_t{0}](Value& next) mutable {
        if (k >= value.as_dict().size()) return false;
        next = value.as_dict().items()[k++].first;
        return true;
      };
    case Kind::object:
      if (Next next = value.as_object()->iterate()) return next;
      break;
    default:
      break;
  }
  throw Failure("'" + value.type() + "' object is not iterable");
}

bool is_iterable(const Value& value) {
  if (value.is(Kind::object)) return value.as_object()->iterate() != nullptr;
  return !value.is_none() && !value.is_number();
}

std::optional<size_t> length_of(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
      return 0;
    case Kind::text:
      return count_code_points(value.as_text());
    case Kind::list:
    case Kind::tuple:
      return value.items().size();
    case Kind::dict:
      return value.as_dict().size();
    case Kind::object:
      return value.as_object()->length();
    default:
      return std::nullopt;
  }
}

double to_double(const Value& number) {
  return number.is_index() ? number.as_integer().to_double() : number.as_floating();
}

}  // namespace nibble::jinja
