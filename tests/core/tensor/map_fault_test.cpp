#include "nibble/core/tensor/map_fault.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "nibble/core/tensor/storage.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

// Reads the last byte of a mapped file after it was cut to one page.
void read_what_is_gone(const std::filesystem::path& path) {
  const FileMap map(path.string());
  exit_when_a_mapped_file_shrinks();
  if (truncate(path.c_str(), 4096) != 0) _exit(1);
  const volatile std::byte* const bytes = map.data();
  [[maybe_unused]] const std::byte last = bytes[map.size() - 1];
  _exit(0);
}

TEST(MapFault, AFileThatShrinksEndsTheProgramWithItsName) {
  test::TemporaryDirectory directory;
  test::write_bytes(directory / "weights", std::string(100'000, 'x'));
  // Matchers instead of an expression: under clang's ThreadSanitizer glibc's regexec waits for ever.
  EXPECT_EXIT(read_what_is_gone(directory / "weights"), ::testing::ExitedWithCode(4),
              testing::AllOf(testing::HasSubstr("error: /"),
                             testing::HasSubstr("/weights: was shortened or its disk failed while it was in use; "
                                                "restore the file")));
}

TEST(MapFault, AnotherBusErrorEndsTheProgramAsBefore) {
  EXPECT_EXIT(
      {
        exit_when_a_mapped_file_shrinks();
        raise(SIGBUS);
        raise(SIGBUS);
      },
      ::testing::KilledBySignal(SIGBUS), testing::_);
}

}  // namespace
}  // namespace nibble
