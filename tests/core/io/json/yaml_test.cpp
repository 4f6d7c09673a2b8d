#include "nibble/core/io/json/yaml.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;
using test::error_of;
using ::testing::HasSubstr;

Json read(const std::string& text) { return parse_yaml(text, "r.yaml", {.max_depth = 8}); }

TEST(Yaml, ScalarsAreWhatTheyLookLikeUnlessTheyAreQuoted) {
  EXPECT_EQ(read("a: 1\nb: -2.5\nc: 2e-4\nd: true\ne: False\nf: ~\ng:\nh: null\n"),
            Json::parse(R"({"a":1,"b":-2.5,"c":2e-4,"d":true,"e":false,"f":null,"g":null,"h":null})"));
  EXPECT_EQ(
      read("a: \"1\"\nb: 'true'\nc: yes\nd: 10min\ne: 1.2.3\nf: .*proj\ng: '~'\nh: 2024-01-01\n"),
      Json::parse(R"({"a":"1","b":"true","c":"yes","d":"10min","e":"1.2.3","f":".*proj","g":"~","h":"2024-01-01"})"));
  EXPECT_EQ(read("a: |\n  two\n  lines\n"), Json::parse(R"({"a":"two\nlines\n"})"));
}

TEST(Yaml, NumbersAreThoseOfTheCoreSchemaOf12) {
  EXPECT_EQ(read("[0x10, 0o10, 0xfF, 010, +7, -7, 1., .5, -.5e+1]").dump(), "[16,8,255,10,7,-7,1.0,0.5,-5.0]");
  EXPECT_EQ(read("[-0x10, 0x, 0o8, 0x-1, 0X10, +-1, --1, 0b1, +.nan, .iNf, inf, '.inf', 1_000]").dump(),
            R"(["-0x10","0x","0o8","0x-1","0X10","+-1","--1","0b1","+.nan",".iNf","inf",".inf","1_000"])");
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(read("[.inf, +.Inf, -.INF]").get<std::vector<double>>(), (std::vector<double>{inf, inf, -inf}));
  for (const Json& nan : read("[.nan, .NaN, .NAN]")) EXPECT_TRUE(std::isnan(nan.get<double>()));
}

TEST(Yaml, ListsMappingsAndAliasesBecomeJsonInTheirOrder) {
  EXPECT_EQ(read("z:\n  - 1\n  - [a, {b: c}]\ny: &x {k: 1}\nw: *x # again\n").dump(),
            R"({"z":[1,["a",{"b":"c"}]],"y":{"k":1},"w":{"k":1}})");
  EXPECT_TRUE(read("").is_null());
  EXPECT_TRUE(read("# nothing\n").is_null());
}

TEST(Yaml, TextThatIsNotUtf8IsRefused) {
  EXPECT_THAT(error_of<InputError>([] { read("a: caf\xe9\n"); }), HasSubstr("r.yaml: is not UTF-8"));
}

// yaml-cpp makes empty documents of it for ever.
TEST(Yaml, ATokenThatBelongsToNoDocumentEnds) {
  EXPECT_THAT(error_of<InputError>([] { read(",a: 1\n"); }), HasSubstr("r.yaml: holds several documents"));
}

TEST(Yaml, WhatIsWrongHasALineAndAColumn) {
  const std::pair<const char*, const char*> cases[] = {
      {"a: 1\nb: [1, 2\n", "r.yaml:3:1: is no YAML: "},
      {"a: 1\n\tb: 2\n", "r.yaml:2:"},
      {"a: 1\nb: 2\na: 3\n", "r.yaml:3:1: key \"a\" is there twice"},
      {"? [a]\n: 1\n", "a key must be text"},
      {"a: 1\n---\nb: 2\n", "r.yaml: holds several documents"},
      {"a: [[[[[[[[[1]]]]]]]]]\n", "more than 8 lists or mappings"},
      {"a: *nothing\n", "r.yaml:1:"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_THAT(error_of<InputError>([&, yaml = text] { read(yaml); }), HasSubstr(message)) << text;
  }
}

TEST(Yaml, AliasesThatGrowAndBracketsWithoutEndAreRefused) {
  std::string laughs = "a: &a [1,1,1,1,1,1,1,1,1]\n";
  for (char name = 'b'; name < 'h'; ++name) {
    laughs += std::string(1, name) + ": &" + name + " [";
    for (int i = 0; i < 9; ++i) laughs += std::string(i > 0 ? ",*" : "*") + static_cast<char>(name - 1);
    laughs += "]\n";
  }
  EXPECT_THAT(error_of<InputError>([&] { read(laughs); }), HasSubstr("more than 100000 values"));
  error_of<InputError>([] { read("a: " + std::string(200000, '[')); });
}

}  // namespace
}  // namespace nibble
