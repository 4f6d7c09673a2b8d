#include "nibble/core/io/safetensors/safetensors.h"

#include <gmock/gmock.h>

#include <cstring>

#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using test::error_of;
using test::read_bytes;
using test::TemporaryDirectory;
using test::write_bytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string with_length(const std::string& header, const std::string& data = "") {
  const uint64_t length = header.size();
  std::string text(sizeof(length), '\0');
  std::memcpy(text.data(), &length, sizeof(length));
  return text + header + data;
}

struct Malformed {
  const char* name;
  std::string bytes;
  const char* reason;
};

const std::vector<Malformed>& malformed_files() {
  static const std::string four(4, 'x'), eight(8, 'x');
  static const std::string a = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  static const std::vector<Malformed> files = {
      {"Empty", "", "is empty"},
      {"LfsPointer", "version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"},
      {"SevenBytes", "1234567", "truncated header"},
      {"LengthPastTheEnd", with_length("{}").substr(0, 9), "truncated header"},
      {"LengthHuge", std::string("\0\0\0\0\0\0\0\x80{}", 10), "header claims 9223372036854775808 bytes"},
      {"LengthOver100MB", std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10), "header claims 100000001 bytes"},
      {"NoObject", with_length("[]"), "does not start with '{'"},
      {"SpaceFirst", with_length(" {}"), "does not start with '{'"},
      {"NoJson", with_length("{\"a\":"), "no valid JSON"},
      {"TextAfterJson", with_length("{}x"), "no valid JSON"},
      {"BadUtf8", with_length("{\"\xff\":{}}"), "no valid JSON"},
      {"DepthBomb", with_length("{\"a\":{\"shape\":" + std::string(100000, '[')), "where the format has none"},
      {"ObjectBomb", with_length("{\"a\":{\"dtype\":{"), "has an object where"},
      {"DuplicateName", with_length("{" + a + "," + a + "}", four), "tensor \"a\" comes twice"},
      {"DuplicateDtype", with_length(R"({"a":{"dtype":"F32","dtype":"F32"}})"), "has a string where"},
      {"Overlap", with_length("{" + a + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})", four + "xx"),
       "overlaps the tensor before it"},
      {"Gap", with_length("{" + a + R"(,"b":{"dtype":"U8","shape":[1],"data_offsets":[7,8]}})", eight), "leaves a gap"},
      {"GapAtStart", with_length(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", "xx"), "leaves a gap"},
      {"TrailingBytes", with_length("{" + a + "}", eight), "4 bytes after the last tensor"},
      {"Truncated", with_length("{" + a + "}", "xxx"), "ends past the end of the file"},
      {"EndBeforeBegin", with_length(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[4,3]}})", four), "no range"},
      {"NegativeOffset", with_length(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}})"), "a negative number"},
      {"FractionOffset", with_length(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1.0]}})", "x"), "a fraction"},
      {"HugeOffset", with_length(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,18446744073709551615]}})", "x"),
       "over 2^63"},
      {"ThreeOffsets", with_length(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,1]}})", "x"), "no range"},
      {"ShapeOverflow", with_length(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})"),
       "overflows"},
      {"BytesOverflow", with_length(R"({"a":{"dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,0]}})"),
       "overflows"},
      {"ShapeAndBytesDisagree", with_length(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", four),
       "has shape [2], 8 bytes, but 4 bytes of data"},
      {"UnknownDtype", with_length(R"({"a":{"dtype":"F3","shape":[1],"data_offsets":[0,4]}})", four),
       "element type \"F3\", not one of F32 F16 BF16 F8_E4M3 F64 I64 I32 I8 U8 BOOL; the file is damaged"},
      {"DtypeOfOtherPrograms", with_length(R"({"a":{"dtype":"F8_E5M2","shape":[4],"data_offsets":[0,4]}})", four),
       "element type \"F8_E5M2\", which nibble does not compute with; bring the weights to bf16 first"},
      {"LacksShape", with_length(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", four), "lacks dtype, shape"},
      {"MetadataNumber", with_length(R"({"__metadata__":{"format":1}})"), "a number"},
      {"NameWithNewline", with_length("{\"a\\nb\":{}}"), "tensor \"a?b\" lacks"},
  };
  return files;
}

class MalformedSafetensors : public ::testing::TestWithParam<size_t> {};

TEST_P(MalformedSafetensors, IsRefusedWithTheReason) {
  const Malformed& file = malformed_files()[GetParam()];
  TemporaryDirectory directory;
  write_bytes(directory / "bad.safetensors", file.bytes);
  const std::string message =
      error_of<InputError>([&] { SafetensorsFile opened((directory / "bad.safetensors").string()); });
  EXPECT_THAT(message, HasSubstr("bad.safetensors: "));
  EXPECT_THAT(message, HasSubstr(file.reason));
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Files, MalformedSafetensors, ::testing::Range(size_t{0}, malformed_files().size()),
                         [](const auto& file) { return std::string(malformed_files()[file.param].name); });

TEST(Safetensors, EveryTruncationOfARealFileIsRefused) {
  const std::filesystem::path asset = test::data_path("safetensors");
  const std::string whole = read_bytes(asset / "tensor-2d-float64.safetensors");
  TemporaryDirectory directory;
  for (size_t size = 0; size < whole.size(); ++size) {
    write_bytes(directory / "cut.safetensors", whole.substr(0, size));
    EXPECT_THROW(SafetensorsFile((directory / "cut.safetensors").string()), InputError) << size;
  }
}

TEST(Safetensors, NoChangedByteOfAHeaderLeadsOutsideTheFile) {
  const std::string whole = read_bytes(test::data_path("safetensors/another-writer.safetensors"));
  const size_t data = 8 + 352;  // where it begins
  TemporaryDirectory directory;
  for (size_t i = 0; i < data; ++i) {
    for (const int change : {0x01, 0x10, 0x80}) {
      std::string changed = whole;
      changed[i] = static_cast<char>(changed[i] ^ change);
      write_bytes(directory / "changed.safetensors", changed);
      try {
        const SafetensorsFile file((directory / "changed.safetensors").string());
        uint64_t total = 0;
        for (const std::string& name : file.names()) total += file.at(name).bytes();
        EXPECT_EQ(total, whole.size() - data);
      } catch (const InputError&) {
      }
    }
  }
}

TEST(Safetensors, ReadsFilesOfOtherWriters) {
  const std::filesystem::path asset = test::data_path("safetensors");
  const SafetensorsFile f64((asset / "tensor-2d-float64.safetensors").string());
  ASSERT_EQ(f64.names().size(), 1u);
  EXPECT_EQ(f64.at(f64.names()[0]).dtype(), DType::f64);
  EXPECT_EQ(f64.at(f64.names()[0]).rank(), 2u);
  const SafetensorsFile i32((asset / "tensor-1d-int32.safetensors").string());
  EXPECT_EQ(i32.at(i32.names()[0]).dtype(), DType::i32);
  const SafetensorsFile fp8((asset / "fp8.safetensors").string());
  EXPECT_EQ(fp8.at("x").dtype(), DType::f8_e4m3);
  EXPECT_EQ(fp8.at("x").shape(), Shape{8});
}

TEST(Safetensors, MissingTensorIsNamed) {
  const std::filesystem::path asset = test::data_path("safetensors");
  const SafetensorsFile file((asset / "tensor-1d-int32.safetensors").string());
  EXPECT_FALSE(file.find("nothing"));
  EXPECT_THAT(error_of<InputError>([&] { file.at("nothing"); }), HasSubstr("has no tensor \"nothing\""));
}

TEST(Safetensors, RewritingAFileOfTheSafetensorsLibraryGivesTheSameBytes) {
  const auto original = test::data_path("stories-llama-nf4-dq/model.safetensors");
  const SafetensorsFile file(original.string());
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const std::string& name : file.names()) tensors.emplace_back(name, file.at(name));
  std::reverse(tensors.begin(), tensors.end());
  TemporaryDirectory directory;
  write_safetensors(directory / "again.safetensors", tensors, file.metadata());
  EXPECT_TRUE(read_bytes(original) == read_bytes(directory / "again.safetensors"));
}

TEST(Safetensors, PiecesWrittenInAnyOrderMakeTheFile) {
  MemoryPool pool;
  TemporaryDirectory directory;
  const Tensor rows = Tensor::from<float>(pool, {3, 2}, std::vector<float>{1, 2, 3, 4, 5, 6});
  const Tensor bytes = Tensor::from<uint8_t>(pool, {3}, std::vector<uint8_t>{7, 8, 9});
  SafetensorsWriter writer(directory / "m.safetensors", {{"a.u8", {3}, DType::u8}, {"b.f32", {3, 2}, DType::f32}});
  writer.append("b.f32", rows.rows(0, 1));
  writer.write("a.u8", bytes);
  writer.append("b.f32", rows.rows(1, 3));
  EXPECT_FALSE(std::filesystem::exists(directory / "m.safetensors"));
  writer.finish();
  const SafetensorsFile file((directory / "m.safetensors").string());
  EXPECT_THAT(file.names(), ElementsAre("b.f32", "a.u8"));
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_TRUE(file.at("b.f32").aligned());
  const Tensor read = file.at("b.f32");
  EXPECT_THAT(read.span<const float>(), ElementsAre(1, 2, 3, 4, 5, 6));
  const Tensor codes = file.at("a.u8");
  EXPECT_THAT(codes.span<const uint8_t>(), ElementsAre(7, 8, 9));
}

TEST(Safetensors, AnIncompleteFileIsNotPublished) {
  TemporaryDirectory directory;
  {
    SafetensorsWriter writer(directory / "m.safetensors", {{"a", {3}, DType::u8}});
    EXPECT_THROW(writer.finish(), std::logic_error);
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(Safetensors, ADirectoryOrPipeInPlaceOfAFileIsRefused) {
  TemporaryDirectory directory;
  EXPECT_THAT(error_of<IoError>([&] { SafetensorsFile f(directory.path().string()); }),
              HasSubstr("is not a regular file"));
}

}  // namespace
}  // namespace nibble
