#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/core/io/files/atomic_file.h"

namespace nibble {

/// What every command asks before it writes `out`, whatever may be replaced there. Throws UsageError naming both when
/// `out` is, lies in or contains one of `inputs` (paths that are not there and empty ones are passed over), also by way
/// of links, "..", hard links or another mount of the same directory; a link to a file in an input directory stands for
/// that file. Then removes what a command that was killed has left of `out`.
void guard_output(const std::filesystem::path& out, const std::vector<std::filesystem::path>& inputs);

/// Throws IoError where no file can be made in `directory`, as far as it and its permissions say. For before the work,
/// with nearest_existing() where directories will be made.
void require_writable(const std::filesystem::path& directory);

/// Throws what AtomicDirectory would before it writes `out`. For before work that it stands behind.
void require_place(const std::filesystem::path& out, Replace replace);

/// Whether a regular file begins with `mark` or is empty.
bool begins_with_mark(const std::filesystem::path& file, std::string_view mark);

/// Throws UsageError where a regular file is at `file` that `replace` keeps: Replace::own all but empty ones and those
/// that begin with `mark`, as every `kind` ("GGUF file") that nibble writes does. For before the work; with
/// Replace::nothing AtomicFile looks again when it is done.
void require_replaceable_file(const std::filesystem::path& file, Replace replace, std::string_view mark,
                              const std::string& kind);

/// Whether the content of a file is of nibble, as far as it shows. May throw Error for no.
using IsOwn = std::function<bool(const std::filesystem::path& file)>;
/// Of files that begin with `mark`.
IsOwn begins_with(std::string mark);

/// Throws UsageError where a regular file is at `file` that is neither empty nor `is_own`: a command ("nibble logits")
/// that takes no --force replaces what it wrote itself. IoError where its directory takes none. For before the work.
void require_own_file(const std::filesystem::path& file, const IsOwn& is_own, const std::string& command);

}  // namespace nibble
