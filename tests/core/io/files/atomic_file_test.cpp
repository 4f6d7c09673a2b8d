#include "nibble/core/io/files/atomic_file.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>

#include "nibble/core/base/error.h"
#include "nibble/core/io/files/directory_lock.h"
#include "nibble/core/io/files/temporary_name.h"
#include "nibble/core/io/hash.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::read_bytes;
using test::TemporaryDirectory;
using test::write_bytes;
using ::testing::HasSubstr;

TEST(AtomicFile, AppearsAtCommitAndReplacesTheOldOne) {
  TemporaryDirectory directory;
  write_bytes(directory / "a", "old");
  {
    AtomicFile file(directory / "a");
    file.write("ne");
    file.write("w!");
    file.write_at(1, std::as_bytes(std::span("E", 1)));
    EXPECT_EQ(read_bytes(directory / "a"), "old");
    file.commit();
  }
  EXPECT_EQ(read_bytes(directory / "a"), "nEw!");
  EXPECT_EQ(std::distance(fs::directory_iterator(directory.path()), {}), 1);
}

TEST(AtomicFile, WithoutCommitNothingIsLeft) {
  TemporaryDirectory directory;
  { AtomicFile(directory / "a").write("half"); }
  EXPECT_TRUE(fs::is_empty(directory.path()));
}

TEST(AtomicFile, LongAndOddNamesWork) {
  TemporaryDirectory directory;
  for (const std::string& name :
       {std::string(255, 'n'), std::string("name with space\nand line"), std::string("тест")}) {
    write_file_atomically(directory / name, "x");
    EXPECT_EQ(read_bytes(directory / name), "x");
  }
}

TEST(AtomicFile, AMissingDirectoryIsAnIoErrorWithTheSystemsReason) {
  TemporaryDirectory directory;
  EXPECT_THAT(error_of<IoError>([&] { write_file_atomically(directory / "none/a", "x"); }),
              HasSubstr("none/a: cannot be written: No such file or directory; check the path"));
}

// A process of its own with a small limit on file sizes: the write fails half way for real.
TEST(AtomicFile, AFailedWriteLeavesTheOldFileAndNoTemporary) {
  TemporaryDirectory directory;
  write_bytes(directory / "a", "old");
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_file_atomically(directory / "a", std::string(10000, 'x'));
      _exit(1);
    } catch (const IoError& error) {
      _exit(std::string(error.what()).find("File too large") != std::string::npos ? 0 : 2);
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(read_bytes(directory / "a"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(directory.path()), {}), 1);
}

TEST(AtomicFile, MoreThanTheDiskHasIsRefusedWithBothNumbers) {
  TemporaryDirectory directory;
  AtomicFile file(directory / "a");
  const std::string message = error_of<IoError>([&] { file.reserve(uint64_t{1} << 60); });
  EXPECT_THAT(message, HasSubstr("needs 1.00 EiB, "));
  EXPECT_THAT(message, HasSubstr("are free"));
}

TEST(AtomicFile, AFullDeviceOnADiskWithRoomSaysOnlyWhatIsNeeded) {
  const std::string message = error_of<IoError>([] { write_file_atomically("/dev/full", "abc"); });
  EXPECT_THAT(message, HasSubstr("no space left on the device: 3 B are needed; "));
}

TEST(AtomicFile, AKilledWriterLeavesOnlyATemporaryName) {
  TemporaryDirectory directory;
  write_bytes(directory / "a", "old");
  const pid_t child = fork();
  if (child == 0) {
    AtomicFile file(directory / "a");
    file.write("half");
    raise(SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(read_bytes(directory / "a"), "old");
  int temporaries = 0;
  for (const auto& entry : fs::directory_iterator(directory.path())) {
    temporaries += entry.path().filename().string().starts_with(kTemporaryPrefix);
  }
  EXPECT_EQ(temporaries, 1);
}

TEST(WriteProbe, ReportsWhetherADirectoryCanBeWritten) {
  TemporaryDirectory directory;
  write_probe(directory.path());
  EXPECT_TRUE(fs::is_empty(directory.path()));
  EXPECT_THAT(error_of<IoError>([&] { write_probe(directory / "none"); }), HasSubstr("cannot be written to"));
  EXPECT_THROW(write_probe("/proc"), IoError);
}

TEST(AtomicDirectory, AppearsWholeAtCommit) {
  TemporaryDirectory directory;
  const fs::path target = directory / "deep/er/model/";
  {
    AtomicDirectory result(target);
    fs::create_directories(result.path() / "sub");
    write_bytes(result.path() / "sub" / "a", "x");
    EXPECT_FALSE(fs::exists(target));
    result.commit();
  }
  EXPECT_EQ(read_bytes(target / "sub" / "a"), "x");
  EXPECT_EQ(std::distance(fs::directory_iterator(directory / "deep/er"), {}), 1);
}

TEST(AtomicDirectory, WithoutCommitNeitherItNorItsParentsAreLeft) {
  TemporaryDirectory directory;
  {
    AtomicDirectory result(directory / "deep/er/model");
    write_bytes(result.path() / "a", "x");
  }
  EXPECT_TRUE(fs::is_empty(directory.path()));
}

TEST(AtomicDirectory, MessagesAboutItsFilesNameTheTargetAndNoTemporaryName) {
  const TemporaryDirectory directory;
  const std::string long_name(240, 'x');
  for (const std::string& name : {std::string("step-3-a"), long_name}) {
    const AtomicDirectory result(directory / name);
    const std::string message = error_of<IoError>([&] { AtomicFile file(result.path() / "missing/part"); });
    EXPECT_THAT(message, testing::Not(HasSubstr(".tmp-")));
    EXPECT_THAT(message, HasSubstr((directory / name / "missing/part").string() + ": "));
  }
}

TEST(AtomicDirectory, AnExistingTargetIsRefusedUnlessEmptyOrToBeReplaced) {
  TemporaryDirectory directory;
  fs::create_directory(directory / "model");
  AtomicDirectory(directory / "model").commit();
  write_bytes(directory / "model" / "old", "x");
  EXPECT_THAT(error_of<UsageError>([&] { AtomicDirectory again(directory / "model"); }), HasSubstr("exists already"));
  {
    AtomicDirectory result(directory / "model", Replace::anything);
    write_bytes(result.path() / "new", "y");
    EXPECT_TRUE(fs::exists(directory / "model/old"));
    result.commit();
  }
  EXPECT_FALSE(fs::exists(directory / "model/old"));
  EXPECT_EQ(read_bytes(directory / "model/new"), "y");
  EXPECT_EQ(std::distance(fs::directory_iterator(directory.path()), {}), 1);
}

TEST(AtomicDirectory, KnowsWhatItWroteAgainByTheListOfFiles) {
  TemporaryDirectory directory;
  const auto write = [&](Replace replace) {
    AtomicDirectory result(directory / "model", replace);
    fs::create_directory(result.path() / "sub");
    write_bytes(result.path() / "sub" / "a", "x");
    result.list_files();
    result.commit();
  };
  write(Replace::nothing);
  EXPECT_EQ(read_bytes(directory / "model" / std::string(kFileList)), "sub/a\n");
  write(Replace::own);
  write_bytes(directory / "model/sub/thesis", "x");
  EXPECT_THAT(error_of<UsageError>([&] { write(Replace::own); }),
              HasSubstr("model: holds sub/thesis, which nibble did not write; "));
  EXPECT_TRUE(fs::exists(directory / "model/sub/thesis"));
  write(Replace::anything);
  EXPECT_FALSE(fs::exists(directory / "model/sub/thesis"));
  fs::remove(directory / "model" / std::string(kFileList));
  EXPECT_THAT(error_of<UsageError>([&] { write(Replace::own); }),
              HasSubstr("is not a directory that nibble wrote (it has no .nibble.files); "));
}

TEST(AtomicDirectory, WhatCameMeanwhileIsNotReplaced) {
  TemporaryDirectory directory;
  AtomicDirectory first(directory / "model"), second(directory / "model");
  write_bytes(first.path() / "a", "first");
  write_bytes(second.path() / "a", "second");
  first.commit();
  EXPECT_THAT(error_of<UsageError>([&] { second.commit(); }), HasSubstr("model: exists already"));
  EXPECT_EQ(read_bytes(directory / "model/a"), "first");
}

TEST(AtomicFile, WhatCameMeanwhileIsNotReplaced) {
  TemporaryDirectory directory;
  AtomicFile first(directory / "a", Replace::nothing), second(directory / "a", Replace::nothing);
  first.write("first");
  second.write("second");
  first.commit();
  EXPECT_THAT(error_of<UsageError>([&] { second.commit(); }), HasSubstr("a: exists already"));
  EXPECT_THROW(AtomicFile(directory / "a", Replace::nothing), UsageError);
  EXPECT_EQ(read_bytes(directory / "a"), "first");
}

TEST(AtomicFile, LinksStayAndDirectoriesAreRefusedAtOnce) {
  TemporaryDirectory directory;
  fs::create_directory(directory / "place");
  fs::create_symlink("place/next", directory / "link");
  fs::create_symlink("target", directory / "place/next");
  write_file_atomically(directory / "link", "x");
  EXPECT_TRUE(fs::is_symlink(directory / "link"));
  EXPECT_TRUE(fs::is_symlink(directory / "place/next"));
  EXPECT_EQ(read_bytes(directory / "place/target"), "x");
  fs::create_symlink("circle", directory / "circle");
  EXPECT_THROW(write_file_atomically(directory / "circle", "x"), IoError);
  EXPECT_THAT(error_of<IoError>([&] { AtomicFile(directory / "place"); }), HasSubstr("Is a directory"));
}

TEST(SweepLeftovers, TakesWhatTheDeadLeftAndNothingElse) {
  TemporaryDirectory directory;
  for (const char* name : {".tmp-nibble-1-d0/model", ".tmp-nibble-1-d1-old/x", ".tmp-nibble-x", ".tmp-thesis"}) {
    fs::create_directories(directory / name);
  }
  for (const char* name : {".tmp-nibble-1-0", ".tmp-nibble-1-1-m.gguf", ".tmp-nibble-1-d9", ".tmp-nibble--1"}) {
    write_bytes(directory / name, "x");
  }
  const AtomicDirectory live(directory / "model");
  AtomicFile writing(directory / "m.gguf");
  EXPECT_EQ(sweep_leftovers(directory.path(), "m.gguf"), 1);
  EXPECT_EQ(sweep_leftovers(directory.path(), "model"), 1);
  EXPECT_EQ(sweep_leftovers(directory.path()), 2);
  EXPECT_EQ(sweep_leftovers(directory / "none"), 0);
  EXPECT_TRUE(fs::exists(live.path()));
  writing.commit();
  EXPECT_EQ(std::distance(fs::directory_iterator(directory.path()), {}), 4 + 2);
}

TEST(DirectoryLock, ASecondRunIsRefusedAndToldWhoHoldsIt) {
  TemporaryDirectory directory;
  {
    const DirectoryLock lock(directory.path());
    EXPECT_THAT(error_of<IoError>([&] { DirectoryLock second(directory.path()); }),
                HasSubstr("is in use by another run (process " + std::to_string(getpid()) + " on "));
  }
  const DirectoryLock again(directory.path());
}

TEST(Hash, IsXxh3With128Bits) {
  EXPECT_EQ(hash_bytes({}), "99aa06d3014798d86001c324468d497f");  // xxhsum -H2 of an empty file
  TemporaryDirectory directory;
  write_bytes(directory / "a", std::string(3000000, 'q'));
  const std::string text(3000000, 'q');
  EXPECT_EQ(hash_file(directory / "a"), hash_bytes(std::as_bytes(std::span(text.data(), text.size()))));
  EXPECT_THROW(hash_file(directory.path()), IoError);
}

TEST(CopyFile, CopiesTheFileBehindALink) {
  TemporaryDirectory directory;
  write_bytes(directory / "a", "x");
  fs::create_symlink("a", directory / "link");
  copy_file_atomically(directory / "link", directory / "b");
  EXPECT_FALSE(fs::is_symlink(directory / "b"));
  EXPECT_EQ(read_bytes(directory / "b"), "x");
  EXPECT_THROW(copy_file_atomically(directory.path(), directory / "c"), IoError);
  EXPECT_FALSE(fs::exists(directory / "c"));
}

}  // namespace
}  // namespace nibble
