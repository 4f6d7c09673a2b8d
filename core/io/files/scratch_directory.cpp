#include "nibble/core/io/files/scratch_directory.h"

#include <cstdlib>
#include <string>
#include <system_error>

#include "nibble/core/base/error.h"
#include "nibble/core/io/files/unfinished.h"

namespace nibble {

ScratchDirectory::ScratchDirectory() {
  std::string name = (std::filesystem::temp_directory_path() / "nibble-scratch-XXXXXX").string();
  const auto held = hold_unfinished();
  if (mkdtemp(name.data()) == nullptr) throw IoError(name, "cannot be made", "set TMPDIR to a directory with space");
  path_ = name;
  note_unfinished(path_);
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
  forget_unfinished(path_);
}

}  // namespace nibble
