#include "nibble/core/tensor/nameless_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "nibble/core/base/uninterrupted.h"

namespace nibble {

int open_nameless_file(const std::string& directory) {
  const int file =
      uninterrupted([&] { return open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR); });
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) return file;
  std::string name = directory + "/.tmp-nibble-XXXXXX";
  const int named = uninterrupted([&] { return mkostemp(name.data(), O_CLOEXEC); });
  if (named >= 0) unlink(name.c_str());
  return named;
}

}  // namespace nibble
