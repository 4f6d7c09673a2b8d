// Numbers of records whose file has nothing but text.

#include <gmock/gmock.h>

#include "nibble/core/base/error.h"
#include "nibble/tests/core/data/byte_encoder.h"

namespace nibble {
namespace {

using test::error_of;
using test::Files;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Dataset load_csv(const std::string& lines, DataFormat format) {
  Files files;
  DataOptions options;
  options.format = format;
  return test::load(files.write("data.csv", lines), options);
}

TEST(NumbersAsText, AreLabelsAndMargins) {
  const Dataset labels = load_csv("text,label\na,1\nb,0.5\nc,-3\nd,True\n", DataFormat::labeled);
  EXPECT_THAT(labels.sample(0).values, ElementsAre(1.0f));
  EXPECT_THAT(labels.sample(1).values, ElementsAre(0.5f));
  EXPECT_THAT(labels.sample(2).values, ElementsAre(-3.0f));
  EXPECT_THAT(labels.sample(3).values, ElementsAre(1.0f));
  const Dataset pairs = load_csv("prompt,chosen,rejected,margin\na,b,c,0.5\n", DataFormat::preference);
  EXPECT_THAT(pairs.sample(0).values, ElementsAre(0.5f));
}

TEST(NumbersAsText, OtherTextIsRefused) {
  for (const char* label : {"spam", "1 2", "nan", "1e999", "[1]", "\"\""}) {
    EXPECT_THAT(
        error_of<InputError>([&] { load_csv("text,label\na," + std::string(label) + "\n", DataFormat::labeled); }),
        HasSubstr("data.csv:2:1: field \"label\" is string, expected a number"))
        << label;
  }
}

}  // namespace
}  // namespace nibble
