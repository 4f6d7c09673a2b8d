// What a plan counts for the data.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "nibble/recipes/plan/plan_job.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using nlohmann::json;

TEST(PlannedData, AreAllThatARunHoldsOfThem) {
  const test::TemporaryDirectory directory;
  std::string lines;
  for (int i = 0; i < 1000; ++i)
    lines += R"({"prompt": "a question", "completion": "an answer"})"
             "\n";
  std::filesystem::create_directories(directory.path() / "d");
  const std::string all = (directory.path() / "d").string(), file = all + "/a.jsonl";
  test::write_bytes(file, lines);
  const auto planned = [&](const json& data) {
    const json recipe = {{"model", {{"path", test::data_path("stories-llama").string()}}},
                         {"adapter", {{"r", 2}}},
                         {"data", data},
                         {"output", {{"dir", "none"}}}};
    return plan_job(parse_recipe(recipe.dump(), "test")).program_bytes;
  };
  const int64_t once = planned({{"train", file}});
  EXPECT_GT(once, std::ssize(lines));
  EXPECT_EQ(planned({{"train", all}}), once);
  EXPECT_EQ(planned({{"train", all + "/*.jsonl"}}), once);
  EXPECT_EQ(planned({{"train", file}, {"eval", all}}), 2 * once);
  EXPECT_EQ(planned({{"train", "none"}}), 0);
  for (const char* name : {"/p.jsonl.gz", "/p.jsonl.zst", "/p.parquet"}) {
    test::write_bytes(all + name, lines);
    EXPECT_GE(planned({{"train", all + name}}), 4 * std::ssize(lines)) << name;
  }
}

}  // namespace
}  // namespace nibble
