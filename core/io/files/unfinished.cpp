#include "nibble/core/io/files/unfinished.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
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
};

Registry& registry() {
  static Registry* const result = new Registry;
  return *result;
}

// A list that only grows, so that a signal handler may read it at any time. id 0: free.
struct GroupNode {
  std::atomic<pid_t> id;
  GroupNode* next;
};
std::atomic<GroupNode*> groups{nullptr};
static_assert(std::atomic<pid_t>::is_always_lock_free && std::atomic<GroupNode*>::is_always_lock_free);

// Of this id, or null; held by hold_unfinished().
GroupNode* find_group(pid_t id) {
  GroupNode* node = groups;
  while (node && node->id != id) node = node->next;
  return node;
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
  GroupNode* const spare = find_group(0);
  spare ? void(spare->id = group) : void(groups = new GroupNode{group, groups});
}

void forget_group(pid_t group) {
  const auto held = hold_unfinished();
  if (GroupNode* const node = find_group(group)) node->id = 0;
}

void kill_groups() {
  for (const GroupNode* node = groups; node; node = node->next) {
    if (const pid_t id = node->id; id > 0) kill(-id, SIGKILL);
  }
}

void remove_unfinished() {
  hold_unfinished().release();
  kill_groups();
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
