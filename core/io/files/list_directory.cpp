#include "nibble/core/io/files/list_directory.h"

#include <algorithm>

#include "nibble/core/io/files/system_error.h"

namespace nibble {

namespace fs = std::filesystem;

std::vector<fs::directory_entry> list_directory(const fs::path& directory) {
  std::vector<fs::directory_entry> entries;
  std::error_code error;
  do {
    entries.clear();
    for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
      entries.push_back(*entry);
    }
  } while (error == std::errc::interrupted);
  if (error) throw system_error(directory, "cannot be listed", error.value());
  std::sort(entries.begin(), entries.end());
  return entries;
}

fs::path nearest_existing(const fs::path& path) {
  fs::path place = fs::absolute(path);
  while (!fs::exists(place) && place.has_relative_path()) place = place.parent_path();
  return place;
}

}  // namespace nibble
