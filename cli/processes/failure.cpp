#include "nibble/cli/processes/failure.h"

#include <filesystem>
#include <new>
#include <system_error>

#include "nibble/core/base/error.h"

namespace nibble::cli {

Failure failure_of(const std::exception& error) {
  if (const auto* known = dynamic_cast<const Error*>(&error)) return {known->exit_code(), known->what()};
  if (const auto* path = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    return {4, path->path1().string() + ": " + path->code().message() + "; check the path and its device"};
  }
  if (dynamic_cast<const std::bad_alloc*>(&error)) {
    return {4, "out of memory; lower max_length or microbatch_size, or use a 4-bit base"};
  }
  const auto* refused = dynamic_cast<const std::system_error*>(&error);
  if (refused && refused->code() == std::errc::resource_unavailable_try_again) {
    return {4, "no memory or no process is left for a thread; raise the limit (ulimit -v, ulimit -u)"};
  }
  return {70, std::string("internal: ") + error.what() + "; please report it with the command line"};
}

}  // namespace nibble::cli
