// Zamba 2, whose layers share blocks, through the commands around a run.

#include "nibble/tests/assets.h"
#include "nibble/tests/cli/small_model.h"

namespace nibble {
namespace {

using Zamba2 = test::SmallModel;

TEST_F(Zamba2, IsQuantizedPlannedTrainedAndMergedWhereNoBlockIsShared) {
  const std::string model = std::string(kSourceDir) + "/tests/data/goldens/families/zamba2-4/model";
  std::string lines;
  for (int i = 0; i < 4; ++i) {
    lines += nlohmann::json{{"input_ids", {3 + i, 5, 7, 9, 11, 13, 17, 2}}}.dump() + "\n";
  }
  test::write_bytes(root_ / "d.jsonl", lines);
  ASSERT_EQ(run("quantize --model " + model + " --out four").code, 0);
  const std::string four = test::read_bytes(root_ / "four/model.safetensors");
  EXPECT_NE(four.find("linear.weight.absmax"), std::string::npos);
  EXPECT_EQ(four.find("q_proj.weight.absmax"), std::string::npos) << "Transformers does not read shared ones in 4 bits";
  for (const std::string& base : {model, std::string("four")}) {
    for (const char* targets : {"in_proj", "all-linear"}) {
      const bool shared = std::string(targets) == "all-linear";
      nlohmann::json recipe = {{"model", {{"path", base}}},
                               {"adapter", {{"r", 2}, {"target_modules", targets}}},
                               {"data", {{"train", "d.jsonl"}, {"max_length", 16}}},
                               {"train", {{"steps", 2}, {"threads", 1}}},
                               {"output", {{"dir", "run"}}}};
      if (!shared) recipe["adapter"]["target_modules"] = {targets};
      test::write_bytes(root_ / "r.json", recipe.dump());
      for (const char* command : {"validate", "preview", "plan", "train"}) {
        const CommandOutput said = run(std::string(command) + " r.json");
        EXPECT_EQ(said.code, 0) << command << " " << base << ": " << said.text;
      }
      const CommandOutput merged = run("merge --model " + base + " --adapter run/adapter --out merged");
      EXPECT_EQ(merged.code, shared ? 3 : 0) << merged.text;
      const CommandOutput text = run("generate --model " + (shared ? base + " --adapter run/adapter" : "merged") +
                                     " --ids 3,5,7 --max-new-tokens 4");
      EXPECT_EQ(text.code, 0) << text.text;
      for (const char* made : {"run", "merged"}) std::filesystem::remove_all(root_ / made);
    }
  }
  for (const char* axis : {"pipeline", "tensor"}) {
    const nlohmann::json recipe = {{"model", {{"path", model}}},
                                   {"data", {{"train", "d.jsonl"}, {"max_length", 16}}},
                                   {"train", {{"steps", 2}}},
                                   {"parallel", {{axis, 2}}},
                                   {"output", {{"dir", "run"}}}};
    test::write_bytes(root_ / "r.json", recipe.dump());
    for (const char* command : {"validate", "plan"}) {
      const CommandOutput said = run(std::string(command) + " r.json");
      EXPECT_EQ(said.code, 2) << command << " " << axis << ": " << said.text;
      EXPECT_NE(said.text.find("use parallel.shard\n"), std::string::npos) << said.text;
    }
  }
}

}  // namespace
}  // namespace nibble
