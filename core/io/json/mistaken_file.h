#pragma once
// Files that people take for what they wanted, and what is wrong where JSON cannot be read: remedies for messages.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace nibble {

struct MistakenFile {
  std::string reason;  ///< "is a Git LFS pointer, not the file itself"
  std::string remedy;
};

/// What a file that begins with `begin` is instead of a model's, a tokenizer's or a data file: a Git LFS pointer, a web
/// page, UTF-16 text, a compressed file, nothing at all.
std::optional<MistakenFile> mistaken_file(std::string_view begin);

/// What to do about a path that does not exist: a shell's signs that nobody expands in a file, or a name on the Hugging
/// Face Hub; `options` are those of the command that downloads it.
std::string missing_path_remedy(const std::string& path, const std::string& options);

/// What to do about the JSON that ends in an error at `byte`: the comma that is too much, quotes of another kind,
/// Python's True. Empty when it is none of the usual mistakes.
std::string json_remedy(std::string_view text, size_t byte);

}  // namespace nibble
