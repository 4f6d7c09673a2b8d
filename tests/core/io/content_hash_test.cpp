#include "nibble/core/io/content_hash.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <span>
#include <string>
#include <thread>

#include "nibble/core/base/error.h"
#include "nibble/core/base/parallel.h"
#include "nibble/core/io/hash.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

class ContentHash : public ::testing::Test {
 protected:
  ContentHash() { setenv("XDG_CACHE_HOME", (scratch_ / "cache").c_str(), 1); }
  ~ContentHash() override { unsetenv("XDG_CACHE_HOME"); }

  fs::path file() const { return scratch_ / "file"; }
  fs::path entries() const { return scratch_ / "cache/nibble/content"; }
  std::vector<fs::path> listed() const {
    std::vector<fs::path> found;
    if (!fs::exists(entries())) return found;
    for (const auto& entry : fs::directory_iterator(entries())) found.push_back(entry.path());
    return found;
  }
  /// The file's hash; waits until the file is old enough to be remembered.
  std::string remembered() {
    std::string hash = content_hash(file());
    while (listed().empty()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      hash = content_hash(file());
    }
    return hash;
  }
  /// Puts another hash into the one entry, with the sum that makes it valid.
  std::string forge() {
    const fs::path entry = listed().at(0);
    std::string text = test::read_bytes(entry);
    const std::string line = text.substr(0, text.size() - 2 - 2 * 32), forged(32, 'f');
    const std::string output = line + forged;
    test::write_bytes(entry, output + " " + hash_bytes(std::as_bytes(std::span(output))) + "\n");
    return forged;
  }

  test::TemporaryDirectory scratch_;
};

TEST_F(ContentHash, SeesEveryByteAndTheSizeOnAnyNumberOfThreads) {
  std::string bytes(size_t{40} << 20, 'x');
  test::write_bytes(file(), bytes);
  const std::string hash = content_hash(file());
  EXPECT_EQ(hash.size(), 32u);
  const int before = threads();
  set_threads(3);
  EXPECT_EQ(content_hash(file()), hash);
  set_threads(before);
  for (const size_t at : {size_t{0}, size_t{17} << 20, bytes.size() - 1}) {
    bytes[at] = 'y';
    test::write_bytes(file(), bytes);
    EXPECT_NE(content_hash(file()), hash) << at;
    bytes[at] = 'x';
  }
  test::write_bytes(file(), bytes + 'x');
  EXPECT_NE(content_hash(file()), hash);
  test::write_bytes(file(), "");
  EXPECT_NE(content_hash(file()), hash);
}

TEST_F(ContentHash, AFileJustWrittenIsNotRemembered) {
  test::write_bytes(file(), "a");
  content_hash(file());
  struct stat facts {};
  ASSERT_EQ(stat(file().c_str(), &facts), 0);
  if (std::time(nullptr) - facts.st_ctim.tv_sec < 2) {
    EXPECT_TRUE(listed().empty());
  }
}

TEST_F(ContentHash, AnEntryIsTrustedForTheFileWithTheSameTimesAlone) {
  test::write_bytes(file(), "first");
  const std::string first = remembered();
  const std::string forged = forge();
  EXPECT_EQ(content_hash(file()), forged);  // it was not read again

  struct stat facts {};
  ASSERT_EQ(stat(file().c_str(), &facts), 0);
  test::write_bytes(file(), "other");  // as many bytes in the same inode, and mtime put back
  const timespec times[2] = {facts.st_atim, facts.st_mtim};
  ASSERT_EQ(utimensat(AT_FDCWD, file().c_str(), times, 0), 0);
  struct stat now {};
  ASSERT_EQ(stat(file().c_str(), &now), 0);
  ASSERT_EQ(now.st_ino, facts.st_ino);
  EXPECT_NE(content_hash(file()), forged);
  EXPECT_NE(content_hash(file()), first);
}

TEST_F(ContentHash, DamagedEntriesAreNone) {
  test::write_bytes(file(), "text");
  const std::string hash = remembered();
  const fs::path entry = listed().at(0);
  const std::string good = test::read_bytes(entry);
  for (size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = bad[at] == '1' ? '2' : '1';
    test::write_bytes(entry, bad);
    EXPECT_EQ(content_hash(file()), hash) << at;
    test::write_bytes(entry, good.substr(0, at));
    EXPECT_EQ(content_hash(file()), hash) << at;
  }
  fs::remove(entry);
  fs::create_directory(entry);
  EXPECT_EQ(content_hash(file()), hash);
}

TEST_F(ContentHash, ADirectoryThatOthersMayWriteIsNotRead) {
  test::write_bytes(file(), "text");
  const std::string hash = remembered(), forged = forge();
  fs::permissions(entries(), fs::perms::others_write, fs::perm_options::add);
  EXPECT_EQ(content_hash(file()), hash);
  fs::permissions(entries(), fs::perms::others_write, fs::perm_options::remove);
  EXPECT_EQ(content_hash(file()), forged);
}

TEST_F(ContentHash, WorksWithoutAPlaceForEntriesAndRefusesWhatIsNoFile) {
  test::write_bytes(scratch_ / "cache", "a file where the directory would be");
  test::write_bytes(file(), "text");
  EXPECT_EQ(content_hash(file()), content_hash(file()));
  EXPECT_THROW(content_hash(scratch_ / "absent"), IoError);
  EXPECT_THROW(content_hash(scratch_.path()), IoError);
  const fs::path fifo = scratch_ / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THROW(content_hash(fifo), IoError);
}

}  // namespace
}  // namespace nibble
