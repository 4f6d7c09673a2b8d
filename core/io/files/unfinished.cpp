#include "nibble/core/io/files/unfinished.h"

#include <signal.h>

#include <algorithm>
#include <vector>

namespace nibble {

namespace fs = std::filesystem;

namespace {

struct Noted {
  fs::path path;
  Leftover what;
};

// Of the whole process, as signals are. Never destroyed: a thread may wait for the mutex at the very end.
struct Registry {
  std::recursive_mutex mutex;
  std::vector<Noted> noted;
  std::vector<pid_t> groups;
};

Registry& registry() {
  static Registry* const result = new Registry;
  return *result;
}

}  // namespace

std::unique_lock<std::recursive_mutex> hold_unfinished() { return std::unique_lock(registry().mutex); }

void note_unfinished(const fs::path& path, Leftover what) {
  const auto held = hold_unfinished();
  std::error_code error;  // the process may go elsewhere meanwhile
  const fs::path absolute = fs::absolute(path, error);
  registry().noted.push_back({error ? path : absolute, what});
}

void forget_unfinished(const fs::path& path) {
  const auto held = hold_unfinished();
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  std::vector<Noted>& noted = registry().noted;
  const auto found = std::find_if(noted.rbegin(), noted.rend(),
                                  [&](const Noted& one) { return one.path == (error ? path : absolute); });
  if (found != noted.rend()) noted.erase(std::next(found).base());
}

void note_group(pid_t group) {
  const auto held = hold_unfinished();
  registry().groups.push_back(group);
}

void forget_group(pid_t group) {
  const auto held = hold_unfinished();
  std::erase(registry().groups, group);
}

void remove_unfinished() {
  hold_unfinished().release();
  for (const pid_t group : registry().groups) kill(-group, SIGKILL);
  std::error_code ignored;
  for (auto one = registry().noted.rbegin(); one != registry().noted.rend(); ++one) {
    // Another thread may put one more file into a directory while it goes.
    for (int tries = 0; tries < 100; ++tries) {
      one->what == Leftover::tree ? fs::remove_all(one->path, ignored) : fs::remove(one->path, ignored);
      if (!ignored || one->what != Leftover::tree) break;
    }
  }
}

}  // namespace nibble
