#include "nibble/core/data/large_array.h"

#include <gtest/gtest.h>

#include "nibble/core/base/error.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

TEST(LargeArray, GrowsAndKeepsItsContentInAFileAsInMemory) {
  const test::TemporaryDirectory directory;
  for (const std::filesystem::path& place : {std::filesystem::path(), directory.path()}) {
    LargeArray<uint64_t> array(place, 3);
    EXPECT_EQ(array[2], 0U);
    for (uint64_t i = 0; i < 300000; ++i) array.push_back(i);
    array.release();
    array.resize(300010);
    LargeArray<uint64_t> moved = std::move(array);
    ASSERT_EQ(moved.size(), 300010U);
    EXPECT_EQ(moved[3], 0U);
    EXPECT_EQ(moved[300002], 299999U);
    EXPECT_EQ(moved[300009], 0U);
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path())) << "its file has no name";
}

TEST(LargeArray, ADirectoryThatIsNotThereIsNamed) {
  const test::TemporaryDirectory directory;
  try {
    LargeArray<uint32_t> array(directory.path() / "gone", 1);
    FAIL() << "there is no place for it";
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("gone"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace nibble
