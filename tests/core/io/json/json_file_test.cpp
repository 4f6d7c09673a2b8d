#include "nibble/core/io/json/json_file.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using test::error_of;
using test::TemporaryDirectory;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string refusal(const std::string& text, const JsonLimits& limits = {}) {
  return error_of<InputError>([&] { parse_json(text, "r.json", limits); });
}

TEST(Json, ErrorsNameLineAndColumn) {
  EXPECT_THAT(refusal("{\n  \"a\": 1,\n  \"b\": ]\n}"), StartsWith("r.json:3:8: "));
  EXPECT_THAT(refusal("{\"\xc3\xa4\": x}"), StartsWith("r.json:1:7: "));
  EXPECT_THAT(refusal(""), StartsWith("r.json: is empty; "));
  EXPECT_THAT(refusal("\n{\"a\": 1e400}"), StartsWith("r.json:2:7: number overflow"));
  EXPECT_THAT(refusal("{\"a\": \"\xff\"}"), StartsWith("r.json:1:"));
}

TEST(Json, DepthAndSizeAreLimited) {
  EXPECT_THAT(refusal(std::string(1000000, '[')), HasSubstr("nested deeper than 64 levels"));
  JsonLimits small;
  small.max_bytes = 10;
  EXPECT_THAT(refusal("[1, 2, 3, 4]", small), HasSubstr("larger than allowed"));
  TemporaryDirectory directory;
  test::write_bytes(directory / "big.json", "[1, 2, 3, 4]");
  EXPECT_THAT(error_of<InputError>([&] { read_json_file(directory / "big.json", small); }),
              HasSubstr("has 12 bytes, more than the 10"));
  EXPECT_THAT(error_of<IoError>([&] { read_json_file(directory.path()); }), HasSubstr("not a regular file"));
}

TEST(Json, DuplicateKeysAreRefusedWhereAsked) {
  JsonLimits unique;
  unique.unique_keys = true;
  EXPECT_THAT(refusal("{\"a\": 1,\n \"b\": {\"a\": 2},\n \"a\": 3}", unique),
              StartsWith("r.json:3:2: key \"a\" comes twice"));
  EXPECT_EQ(parse_json("{\"a\": 1, \"a\": 2}", "r.json")["a"], 2);
}

TEST(Json, CommentsAreAllowedWhereAsked) {
  JsonLimits recipe;
  recipe.comments = true;
  EXPECT_EQ(parse_json("// first\n{\"a\": /* two */ 2}", "r.json", recipe)["a"], 2);
  EXPECT_THAT(refusal("// first\n{}"), StartsWith("r.json:1:1: "));
}

TEST(Json, WrittenFilesLookAsHuggingFaceWritesThem) {
  TemporaryDirectory directory;
  write_json_file(directory / "config.json", {{"b", 1e-05}, {"a", {1, 2}}, {"c", "\xc3\xa4"}});
  EXPECT_EQ(test::read_bytes(directory / "config.json"),
            "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": 1e-05,\n  \"c\": \"\\u00e4\"\n}\n");
}

}  // namespace
}  // namespace nibble
