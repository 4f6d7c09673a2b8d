#include "nibble/core/io/json/json_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "nibble/core/base/error.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/files/open_file.h"
#include "nibble/core/io/files/system_error.h"
#include "nibble/core/io/json/mistaken_file.h"

namespace nibble {

namespace {

// Thrown by the callback and turned into an InputError where the position is known.
struct Refused {
  std::string reason;
  std::string key;  // the last key seen, to find the place by
};

std::string position(std::string_view text, size_t byte) {
  byte = std::min(byte, text.size());
  size_t line = 1, column = 1;
  for (size_t i = 0; i < byte; ++i) {
    if (text[i] == '\n') {
      ++line;
      column = 1;
    } else if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) {  // count characters, not bytes
      ++column;
    }
  }
  return std::to_string(line) + ":" + std::to_string(column);
}

// "[json.exception.parse_error.101] parse error at line 1, column 2: reason" -> "reason"
std::string reason_of(const std::string& what) {
  std::string reason = what;
  if (const size_t end = reason.find("] "); end != std::string::npos) reason = reason.substr(end + 2);
  if (reason.rfind("parse error", 0) == 0) {
    if (const size_t colon = reason.find(": "); colon != std::string::npos) reason = reason.substr(colon + 2);
  }
  if (reason.size() > 300) reason = reason.substr(0, 300) + "...";
  return reason;
}

// The byte of a number that does not fit a double: the parser reports its text only.
size_t find_number(std::string_view text, const std::string& what) {
  const size_t begin = what.find('\''), end = what.rfind('\'');
  if (begin == std::string::npos || end <= begin) return 0;
  const size_t found = text.find(what.substr(begin + 1, end - begin - 1));
  return found == std::string_view::npos ? 0 : found;
}

class LimitCheck {
 public:
  explicit LimitCheck(const JsonLimits& limits) : limits_(limits) {}

  bool operator()(int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      if (depth >= limits_.max_depth) {
        throw Refused{"nested deeper than " + std::to_string(limits_.max_depth) + " levels", last_key_};
      }
      if (limits_.unique_keys && event == Event::object_start) keys_.emplace_back();
    } else if (event == Event::key) {
      last_key_ = value.get_ref<const std::string&>();
      if (limits_.unique_keys && !keys_.back().insert(last_key_).second) {
        throw Refused{"key \"" + last_key_ + "\" comes twice", last_key_};
      }
    } else if (event == Event::object_end && limits_.unique_keys) {
      keys_.pop_back();
    } else if (event == Event::array_end && limits_.join_merges && last_key_ == "merges") {
      join(value);
    }
    return true;
  }

 private:
  static void join(nlohmann::json& pair) {
    const auto is_word = [](const nlohmann::json& token) {
      return token.is_string() && token.get_ref<const std::string&>().find(' ') == std::string::npos;
    };
    if (pair.size() != 2 || !std::ranges::all_of(pair, is_word)) return;
    pair = pair[0].get_ref<const std::string&>() + ' ' + pair[1].get_ref<const std::string&>();
  }

  const JsonLimits& limits_;
  std::vector<std::set<std::string>> keys_;
  std::string last_key_;
};

// See JsonLimits::python_numbers; what stands in strings stays.
std::string with_python_numbers(std::string_view text) {
  std::string result;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    std::string_view number;
    for (const std::string_view name : {"NaN", "Infinity", "-Infinity"}) {
      if (!quoted && text.substr(i).starts_with(name)) number = name;
    }
    if (!number.empty()) {
      result += "{\"__float__\": \"" + std::string(number) + "\"}";
      i += number.size() - 1;
      continue;
    }
    result += text[i];
    if (quoted && text[i] == '\\' && i + 1 < text.size()) {
      result += text[++i];
    } else if (text[i] == '"') {
      quoted = !quoted;
    }
  }
  return result;
}

}  // namespace

std::string read_text_file(const std::filesystem::path& path, size_t max_bytes) {
  const int descriptor = open_file(path, O_RDONLY | O_NONBLOCK);
  if (descriptor < 0) throw system_error(path, "cannot be opened", errno);
  struct Closer {
    int descriptor;
    ~Closer() { close(descriptor); }
  } closer{descriptor};
  struct stat status {};
  if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    throw IoError(path.string(), "is not a regular file", "give the path of a file");
  }
  if (static_cast<uint64_t>(status.st_size) > max_bytes) {
    throw InputError(path.string(),
                     "has " + std::to_string(status.st_size) + " bytes, more than the " + std::to_string(max_bytes) +
                         " that such a file may have",
                     "is it the right file?");
  }
  std::string text(static_cast<size_t>(status.st_size), '\0');
  size_t used = 0;
  while (used < text.size()) {
    const ssize_t count = uninterrupted([&] { return read(descriptor, text.data() + used, text.size() - used); });
    if (count < 0) throw system_error(path, "cannot be read", errno);
    if (count == 0) break;
    used += static_cast<size_t>(count);
  }
  text.resize(used);
  return text;
}

nlohmann::json parse_json(std::string_view text, const std::string& place, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    throw InputError(place, "JSON of " + std::to_string(text.size()) + " bytes is larger than allowed");
  }
  if (limits.python_numbers && (text.find("Infinity") != text.npos || text.find("NaN") != text.npos)) {
    JsonLimits as_json = limits;
    as_json.python_numbers = false;
    return parse_json(with_python_numbers(text), place, as_json);
  }
  LimitCheck check(limits);
  try {
    return nlohmann::json::parse(
        text.begin(), text.end(),
        [&check](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
          return check(depth, event, value);
        },
        true, limits.comments);
  } catch (const nlohmann::json::parse_error& error) {
    if (const auto other = mistaken_file(text)) throw InputError(place, other->reason, other->remedy);
    const size_t byte = error.byte > 0 ? error.byte - 1 : 0;
    const std::string remedy = json_remedy(text, byte);
    throw InputError(place + ":" + position(text, byte), reason_of(error.what()),
                     remedy.empty() ? "correct the JSON there" : remedy);
  } catch (const nlohmann::json::exception& error) {
    throw InputError(place + ":" + position(text, find_number(text, error.what())), reason_of(error.what()),
                     "correct the JSON there");
  } catch (const Refused& refused) {
    const size_t found = refused.key.empty() ? 0 : text.rfind("\"" + refused.key + "\"");
    throw InputError(place + ":" + position(text, found == std::string_view::npos ? 0 : found), refused.reason,
                     "correct the JSON there");
  }
}

nlohmann::json read_json_file(const std::filesystem::path& path, const JsonLimits& limits) {
  return parse_json(read_text_file(path, limits.max_bytes), path.string(), limits);
}

bool holds_json_object(const std::filesystem::path& path, const std::string& key) {
  try {
    const nlohmann::json value = read_json_file(path);
    return value.is_object() && (key.empty() || value.contains(key));
  } catch (const Error&) {
    return false;
  }
}

void write_json_file(const std::filesystem::path& path, const nlohmann::json& value) {
  write_file_atomically(path, value.dump(2, ' ', true) + "\n");
}

}  // namespace nibble
