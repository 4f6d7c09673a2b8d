#include "nibble/core/io/json/mistaken_file.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace nibble {

namespace {

bool begins_like(std::string_view text, std::string_view with) {
  return text.size() >= with.size() && std::equal(with.begin(), with.end(), text.begin(), [](char a, char b) {
           return a == static_cast<char>(std::tolower(static_cast<unsigned char>(b)));
         });
}

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// What Python writes where JSON has another word.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kPythonWords = {{
    {"True", "true"},
    {"False", "false"},
    {"None", "null"},
    {"NaN", "null"},
}};

// Where the string that is open at the end of `text` begins; npos: none is.
size_t open_string(std::string_view text) {
  size_t begin = std::string_view::npos;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') begin = begin == std::string_view::npos ? i : std::string_view::npos;
    if (text[i] == '\\' && begin != std::string_view::npos) ++i;
  }
  return begin;
}

}  // namespace

std::optional<MistakenFile> mistaken_file(std::string_view begin) {
  if (begin.empty()) return {{"is empty", "copy or download it again"}};
  if (begin.starts_with("version https://git-lfs")) {
    return {{"is a Git LFS pointer, not the file itself", "fetch it with `git lfs pull`, or download the file"}};
  }
  if (begin.starts_with("\xff\xfe") || begin.starts_with("\xfe\xff")) return {{"is UTF-16", "save it as UTF-8"}};
  if (begin.starts_with("\x1f\x8b")) return {{"is compressed with gzip", "unpack it with gunzip"}};
  if (begin.starts_with("PK\x03\x04")) {
    return {{"is a zip file, as PyTorch writes them", "save the model as safetensors, other files unpacked"}};
  }
  begin.remove_prefix(std::min(begin.find_first_not_of(" \t\r\n"), begin.size()));
  if (begins_like(begin, "<!doctype html") || begins_like(begin, "<html")) {
    return {{"is a web page", "download the file itself; where access is asked for, log in first"}};
  }
  return std::nullopt;
}

std::string missing_path_remedy(const std::string& path, const std::string& options) {
  if (path.starts_with("~") || path.find('$') != std::string::npos) return "write the path out, without ~ and $";
  const bool is_name = std::count(path.begin(), path.end(), '/') == 1 && !path.starts_with("/") &&
                       !path.ends_with("/") && !path.starts_with(".") && path.find('*') == std::string::npos &&
                       path.find(".json") == std::string::npos && path.find(".txt") == std::string::npos;
  if (!is_name) return "check the path";
  return "check the path; what is on the Hugging Face Hub has to be downloaded first: hf download " + path + options;
}

std::string json_remedy(std::string_view text, size_t byte) {
  if (byte >= text.size()) {
    return text.find_first_not_of(" \t\r\n") == std::string_view::npos
               ? "it is empty"
               : "a quotation mark or bracket is missing, or it is cut off";
  }
  const std::string_view rest = text.substr(byte);
  size_t before = byte;
  while (before > 0 && is_space(text[before - 1])) --before;
  const char last = before > 0 ? text[before - 1] : '\0';
  if ((rest[0] == '}' || rest[0] == ']') && last == ',') return "remove the comma before it";
  if (rest[0] == ',') return "remove the comma";
  if (rest[0] == '\'') return "put strings in double quotes";
  for (const auto& [word, in_json] : kPythonWords) {
    if (rest.starts_with(word)) return "write " + std::string(in_json) + " for " + std::string(word);
  }
  if (rest[0] == '"') {  // a string that should not be there ends, or begins
    size_t begin = std::min(open_string(text.substr(0, byte)), byte);
    while (begin > 0 && is_space(text[begin - 1])) --begin;
    const char ahead = begin > 0 ? text[begin - 1] : '\0';
    if (ahead == '"' || ahead == '}' || ahead == ']' || std::isalnum(static_cast<unsigned char>(ahead))) {
      return "put a comma before it";
    }
  }
  if (last == '"' && before == byte && std::isalnum(static_cast<unsigned char>(rest[0]))) {
    return "write \\\" for a quotation mark inside a string";
  }
  return "";
}

}  // namespace nibble
