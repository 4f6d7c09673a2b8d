#include "nibble/core/io/npy.h"

#include <gmock/gmock.h>

#include "nibble/core/io/files/output_guard.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"
#include "nibble/tests/write_npy.h"

namespace nibble {
namespace {

using test::error_of;
using test::read_bytes;
using test::TemporaryDirectory;
using test::write_bytes;
using test::write_npy;
using ::testing::HasSubstr;

TEST(Npy, AnArrayOfNumPyIsWrittenAgainWithAMarkInTheHeader) {
  const std::filesystem::path asset = test::data_path("lora-golden");
  TemporaryDirectory directory;
  for (const char* name : {"input_ids.npy", "labels.npy", "lora_fp32.logits0.npy"}) {
    const Tensor array = read_npy(asset / name);
    write_npy(directory / name, array);
    const std::string theirs = read_bytes(asset / name), ours = read_bytes(directory / name);
    ASSERT_EQ(ours.size(), 256 + array.bytes());
    EXPECT_EQ(ours.substr(256), theirs.substr(theirs.size() - array.bytes()));
    const size_t behind_length = 10, literal = theirs.find('}') + 1 - behind_length;
    EXPECT_EQ(ours.substr(behind_length, literal), theirs.substr(behind_length, literal));
    EXPECT_TRUE(begins_with_mark(directory / name, NpyWriter::mark(array.dtype())));
    EXPECT_FALSE(begins_with_mark(asset / name, NpyWriter::mark(array.dtype())));
  }
}

TEST(Npy, ScalarsAndEmptyArraysHaveTheirShape) {
  MemoryPool pool;
  TemporaryDirectory directory;
  for (const Shape& shape : {Shape{}, Shape{0}, Shape{3, 0}, Shape{1}, Shape{2, 1, 2}}) {
    write_npy(directory / "a.npy", Tensor::zeros(pool, shape, DType::f64));
    EXPECT_EQ(read_npy(directory / "a.npy").shape(), shape);
    EXPECT_EQ(read_npy(directory / "a.npy").dtype(), DType::f64);
  }
}

std::string file_with(const std::string& header, const std::string& data = "") {
  const char length[] = {static_cast<char>(header.size() & 255), static_cast<char>(header.size() >> 8)};
  return std::string("\x93NUMPY\x01\0", 8) + std::string(length, 2) + header + data;
}

TEST(Npy, DamagedFilesAreRefusedWithTheReason) {
  const std::vector<std::pair<std::string, std::string>> files = {
      {"", "does not start as a .npy file"},
      {"\x93NUMPY", "does not start as a .npy file"},
      {std::string("\x93NUMPY\x09\0\0\0\0\0", 12), "format version 9"},
      {std::string("\x93NUMPY\x02\0\xff\xff\xff\xff", 12), "truncated header"},
      {file_with("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", "1234"), "has shape [2] but 4 bytes"},
      {file_with("{'descr': '<f4', 'fortran_order': True, 'shape': (1,), }", "1234"), "Fortran"},
      {file_with("{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }", "1234"), "element type '>f4'"},
      {file_with("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", "1234"), "structured"},
      {file_with("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", "1234"), "element type '|O'"},
      {file_with("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }"), "no valid shape"},
      {file_with("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }"), "overflows"},
      {file_with("{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, 4294967296), }"), "overflows"},
      {file_with("{'descr': '<f8', 'fortran_order': False, 'shape': (4611686018427387904,), }"), "has shape"},
      {file_with("{'descr': '<f4', 'fortran_order': False}"), "incomplete"},
      {file_with("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': 1}"), "unknown key"},
      {file_with("import os          "), "lacks '{'"},
  };
  TemporaryDirectory directory;
  for (const auto& [bytes, reason] : files) {
    write_bytes(directory / "bad.npy", bytes);
    EXPECT_THAT(error_of<InputError>([&] { read_npy(directory / "bad.npy"); }), HasSubstr(reason));
  }
}

TEST(Npy, PiecesMakeTheArray) {
  MemoryPool pool;
  TemporaryDirectory directory;
  const Tensor rows = Tensor::from<float>(pool, {2, 2}, std::vector<float>{1, 2, 3, 4});
  NpyWriter writer(directory / "a.npy", {2, 2}, DType::f32);
  writer.append(rows.rows(0, 1));
  EXPECT_THROW(writer.finish(), std::logic_error);
  writer.append(rows.rows(1, 2));
  writer.finish();
  const Tensor read = read_npy(directory / "a.npy");
  EXPECT_THAT(read.span<const float>(), ::testing::ElementsAre(1, 2, 3, 4));
}

}  // namespace
}  // namespace nibble
