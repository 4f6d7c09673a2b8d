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

TEST(Json, ObjectsAreKnownByAField) {
  const TemporaryDirectory directory;
  const auto holds = [&](const std::string& text, const std::string& key) {
    test::write_bytes(directory / "a.json", text);
    return holds_json_object(directory / "a.json", key);
  };
  EXPECT_TRUE(holds("{}", ""));
  EXPECT_TRUE(holds(R"({"a": null})", "a"));
  EXPECT_FALSE(holds(R"({"a": null})", "b"));
  for (const char* text : {"[\"a\"]", "a", ""}) EXPECT_FALSE(holds(text, "")) << text;
  EXPECT_FALSE(holds_json_object(directory / "none.json"));
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

TEST(Json, NumbersThatOnlyPythonWritesAreReadWhereAsked) {
  const nlohmann::json read = parse_json(R"({"a": [0.0, Infinity], "b": -Infinity, "c": NaN, "Infinity\"": "NaN"})",
                                         "r.json", kModelConfigJson);
  EXPECT_EQ(read, nlohmann::json::parse(R"({"a": [0.0, {"__float__": "Infinity"}], "b": {"__float__": "-Infinity"},
                                            "c": {"__float__": "NaN"}, "Infinity\"": "NaN"})"));
  EXPECT_THAT(refusal("{\"a\": Infinity}"), StartsWith("r.json:1:"));
}

TEST(Json, WrittenFilesLookAsHuggingFaceWritesThem) {
  TemporaryDirectory directory;
  write_json_file(directory / "config.json", {{"b", 1e-05}, {"a", {1, 2}}, {"c", "\xc3\xa4"}});
  EXPECT_EQ(test::read_bytes(directory / "config.json"),
            "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": 1e-05,\n  \"c\": \"\\u00e4\"\n}\n");
}

}  // namespace
}  // namespace nibble
