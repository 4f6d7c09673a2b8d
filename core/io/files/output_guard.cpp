#include "nibble/core/io/files/output_guard.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <utility>

#include "nibble/core/base/error.h"
#include "nibble/core/io/files/list_directory.h"
#include "nibble/core/io/files/system_error.h"
#include "nibble/core/io/files/temporary_name.h"

namespace nibble {
namespace fs = std::filesystem;

namespace {

using Identity = std::pair<dev_t, ino_t>;

std::optional<Identity> identity_of(const fs::path& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return std::nullopt;
  return Identity(status.st_dev, status.st_ino);
}

// Of `path` and everything above it, as far as it exists.
std::vector<Identity> identities_upwards(const fs::path& path) {
  std::vector<Identity> found;
  for (fs::path at = path;; at = at.parent_path()) {
    if (const auto identity = identity_of(at)) found.push_back(*identity);
    if (!at.has_relative_path()) return found;
  }
}

bool contains(const std::vector<Identity>& identities, const std::optional<Identity>& one) {
  return one && std::find(identities.begin(), identities.end(), *one) != identities.end();
}

void guard(const fs::path& out, const std::vector<Identity>& above_out, const std::optional<Identity>& at_out,
           const fs::path& input, const fs::path& shown) {
  const auto at_input = identity_of(input);
  if (!at_input) return;
  const char* relation = nullptr;
  if (contains(above_out, at_input)) relation = at_out == at_input ? "is" : "lies in";
  if (relation == nullptr && contains(identities_upwards(fs::canonical(input)), at_out)) relation = "contains";
  if (relation == nullptr) return;
  throw UsageError(relation + (" " + (shown == out ? "an input" : shown.string())) + ", which is read",
                   "write to another place", out.string());
}

}  // namespace

void guard_output(const fs::path& out, const std::vector<fs::path>& inputs) {
  const fs::path target =
      fs::weakly_canonical(fs::absolute(follow_links(out.has_filename() ? out : out.parent_path())));
  const std::vector<Identity> above_out = identities_upwards(target);
  const auto at_out = identity_of(target);
  for (const fs::path& input : inputs) {
    if (input.empty()) continue;
    guard(out, above_out, at_out, input, input);
    std::error_code error;
    if (!fs::is_directory(input, error)) continue;
    for (const fs::directory_entry& entry : list_directory(input)) {
      if (entry.is_symlink() && entry.is_regular_file(error)) guard(out, above_out, at_out, entry.path(), entry.path());
    }
  }
  sweep_leftovers(target.parent_path(), target.filename().string());
}

void require_writable(const fs::path& directory) {
  if (faccessat(AT_FDCWD, directory.c_str(), W_OK | X_OK, AT_EACCESS) == 0) return;
  throw system_error(directory, "cannot be written to", errno);
}

void require_place(const fs::path& out, Replace replace) {
  require_replaceable(out, replace);
  const fs::path target = fs::absolute(follow_links(out.has_filename() ? out : out.parent_path()));
  require_writable(nearest_existing(target.parent_path()));
}

bool begins_with_mark(const fs::path& file, std::string_view mark) {
  std::string begin(mark.size(), '\0');
  std::ifstream(file, std::ios::binary).read(begin.data(), static_cast<std::streamsize>(begin.size()));
  return begin == mark || fs::is_empty(file);
}

void require_replaceable_file(const fs::path& file, Replace replace, std::string_view mark, const std::string& kind) {
  if (replace == Replace::anything || !fs::is_regular_file(file)) return;
  if (replace == Replace::nothing) throw exists_already(file);
  if (begins_with_mark(file, mark)) return;
  throw UsageError("is no " + kind, "choose another name, or replace it with --force=anything", file.string());
}

IsOwn begins_with(std::string mark) {
  return [mark = std::move(mark)](const fs::path& file) { return begins_with_mark(file, mark); };
}

void require_own_file(const fs::path& file, const IsOwn& is_own, const std::string& command) {
  const fs::path target = fs::absolute(follow_links(file));
  if (!fs::exists(target) || fs::is_regular_file(target)) require_writable(target.parent_path());
  if (!fs::is_regular_file(file) || fs::is_empty(file)) return;
  try {
    if (is_own(file)) return;
  } catch (const Error&) {  // it cannot be read as one
  }
  throw UsageError("is not a file that " + command + " wrote", "choose another name, or remove it", file.string());
}

}  // namespace nibble
