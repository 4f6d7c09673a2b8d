// Commands that are given an adapter and a base: whether it is the base that the adapter was trained on.

#include <gtest/gtest.h>

#include <fstream>

#include "nibble/tests/assets.h"
#include "nibble/tests/cli/small_recipe.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using test::CommandOutput;
using test::output_of_nibble;
using test::SmallRecipe;

TEST(AdapterBase, MergeWarnsWhereTheBaseIsNotTheRuns) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const SmallRecipe small(model);
  const CommandOutput trained =
      output_of_nibble("train " + small.recipe_file().string() + " model.quantize=nf4 train.steps=1 2>&1");
  ASSERT_EQ(trained.code, 0) << trained.text;
  EXPECT_NE(trained.text.find("done: " + (small.run() / "adapter").string()), std::string::npos) << trained.text;
  const std::string merge = "merge --adapter " + (small.run() / "adapter").string() + " --out ";
  const CommandOutput unasked = output_of_nibble(merge + (small.directory / "a").string() + " 2>&1");
  EXPECT_EQ(unasked.code, 0) << unasked.text;
  EXPECT_NE(unasked.text.find("warning: this adapter was trained on the base in nf4"), std::string::npos);
  EXPECT_NE(unasked.text.find("nibble quantize --model " + model.string() + " --type nf4"), std::string::npos);
  const CommandOutput asked = output_of_nibble(merge + (small.directory / "b").string() + " --base original 2>&1");
  EXPECT_EQ(asked.code, 0) << asked.text;
  EXPECT_EQ(asked.text.find("warning"), std::string::npos) << asked.text;
  const fs::path four_bit = small.directory / "nf4";
  ASSERT_EQ(output_of_nibble("quantize --model " + model.string() + " --out " + four_bit.string()).code, 0);
  const CommandOutput right =
      output_of_nibble(merge + (small.directory / "c").string() + " --model " + four_bit.string() + " 2>&1");
  EXPECT_EQ(right.code, 0) << right.text;
  EXPECT_EQ(right.text.find("warning"), std::string::npos) << right.text;
}

// A copy of a model with another last byte of its weights.
void change_last_byte(const fs::path& model, const fs::path& other) {
  fs::create_directories(other);
  fs::copy(model, other);
  fs::permissions(other / "model.safetensors", fs::perms::owner_write, fs::perm_options::add);
  std::fstream weights(other / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  weights.seekp(-1, std::ios::end);
  weights.put(weights.peek() == 1 ? '\2' : '\1');
}

// The adapter alone, far from the run that made it.
TEST(AdapterBase, ACopiedAdapterKnowsItsBase) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const SmallRecipe small(model);
  ASSERT_EQ(output_of_nibble("train " + small.recipe_file().string() + " train.steps=1 2>&1").code, 0);
  const fs::path alone = small.directory / "alone", other = small.directory / "other";
  fs::create_directories(alone);
  fs::copy(small.run() / "adapter", alone);
  fs::remove_all(small.run());
  const std::string merge = "merge --adapter " + alone.string() + " --out ";
  const CommandOutput right = output_of_nibble(merge + (small.directory / "a").string() + " 2>&1");
  EXPECT_EQ(right.code, 0) << right.text;
  EXPECT_EQ(right.text.find("warning"), std::string::npos) << right.text;
  change_last_byte(model, other);
  const std::string into_other = " --model " + other.string();
  const CommandOutput wrong = output_of_nibble(merge + (small.directory / "b").string() + into_other + " 2>&1");
  EXPECT_EQ(wrong.code, 0) << wrong.text;
  EXPECT_NE(wrong.text.find("warning: this adapter was trained on another base than the one in " + other.string() +
                            ", where model.safetensors has other content"),
            std::string::npos)
      << wrong.text;
  const CommandOutput meant =
      output_of_nibble(merge + (small.directory / "c").string() + into_other + " --base original 2>&1");
  EXPECT_EQ(meant.code, 0) << meant.text;
  EXPECT_EQ(meant.text.find("warning"), std::string::npos) << meant.text;
}

// An adapter on another base answers something, and nothing in the answer tells.
TEST(AdapterBase, EveryCommandWarnsOfAnotherBase) {
  const fs::path model = test::data_path("stories-llama");
  const SmallRecipe small(model);
  ASSERT_EQ(output_of_nibble("train " + small.recipe_file().string() + " train.steps=1 2>&1").code, 0);
  const std::string adapter = (small.run() / "adapter").string(), data = (small.directory / "d.jsonl").string();
  const std::string out = (small.directory / "out").string();
  const fs::path other = small.directory / "other";
  change_last_byte(model, other);
  for (const std::string& command : {
           "eval --data " + data,
           std::string("generate --prompt 'The dog' --max-new-tokens 2"),
           std::string("chat --template plain < /dev/null"),
           "logits --ids 1,4,5 --out " + out + "1.npy",
           "export --out " + out + ".gguf",
           "export --adapter-only --out " + out + "-a.gguf",
       }) {
    const std::string name = command.substr(0, command.find(' ')), rest = command.substr(name.size());
    const auto with = [&](const fs::path& base, const std::string& more) {
      return output_of_nibble(name + " --adapter " + adapter + " --model " + base.string() + more + rest + " 2>&1");
    };
    const CommandOutput right = with(model, "");
    EXPECT_EQ(right.code, 0) << right.text;
    EXPECT_EQ(right.text.find("warning: this adapter"), std::string::npos) << right.text;
    const CommandOutput wrong = with(other, name == "export" ? " --force" : "");
    EXPECT_EQ(wrong.code, 0) << wrong.text;
    EXPECT_NE(wrong.text.find("warning: this adapter was trained on another base than the one in " + other.string() +
                              ", where model.safetensors has other content"),
              std::string::npos)
        << command << "\n"
        << wrong.text;
  }
  const CommandOutput in_4_bits = output_of_nibble("eval --quantize nf4 --adapter " + adapter + " --model " +
                                                   model.string() + " --data " + data + " 2>&1");
  EXPECT_NE(in_4_bits.text.find("warning: this adapter was trained on the base without quantization; "
                                "--quantize none gives that\n"),
            std::string::npos)
      << in_4_bits.text;
  const std::string continued = "train " + small.recipe_file().string() + " adapter.path=" + adapter + " output.dir=";
  const CommandOutput same_base = output_of_nibble(continued + out + "-same 2>&1");
  EXPECT_EQ(same_base.code, 0) << same_base.text;
  EXPECT_EQ(same_base.text.find("warning: this adapter"), std::string::npos) << same_base.text;
  const CommandOutput other_base = output_of_nibble(continued + out + "-other model.path=" + other.string() + " 2>&1");
  EXPECT_NE(other_base.text.find("warning: this adapter was trained on another base"), std::string::npos)
      << other_base.text;
  // A config.json as Python writes it, of which Mamba-2's has Infinity.
  nlohmann::json config = nlohmann::json::parse(std::ifstream(other / "config.json"));
  config["time_step_limit"] = "LIMIT";
  std::string text = config.dump();
  text.replace(text.find("\"LIMIT\""), 7, "[0.0, Infinity]");
  fs::remove(other / "config.json");  // it may be a link
  std::ofstream(other / "config.json") << text;
  const CommandOutput infinite = output_of_nibble(continued + out + "-infinite model.path=" + other.string() + " 2>&1");
  EXPECT_EQ(infinite.code, 0) << infinite.text;
}

// ... and of a base that is held otherwise than in the training.
TEST(AdapterBase, TheBitsThatTheBaseWasHeldInAreKnown) {
  const fs::path model = test::data_path("stories-llama");
  const SmallRecipe small(model);
  ASSERT_EQ(output_of_nibble("train " + small.recipe_file().string() + " model.quantize=nf4 train.steps=1 2>&1").code,
            0);
  const std::string named = " --adapter " + (small.run() / "adapter").string() + " --model ";
  const std::string data = " --data " + (small.directory / "d.jsonl").string() + " 2>&1";
  const std::string in_16_bits = "warning: this adapter was trained on the base in nf4; ";
  const CommandOutput whole = output_of_nibble("eval" + named + model.string() + data);
  EXPECT_NE(whole.text.find(in_16_bits + "--quantize nf4 gives that\n"), std::string::npos) << whole.text;
  const CommandOutput held = output_of_nibble("eval --quantize nf4" + named + model.string() + data);
  EXPECT_EQ(held.code, 0) << held.text;
  EXPECT_EQ(held.text.find("warning: this adapter"), std::string::npos) << held.text;
  const std::string merge = "merge --out " + (small.directory / "m").string() + named;
  const CommandOutput merged = output_of_nibble(merge + model.string() + " 2>&1");
  EXPECT_NE(merged.text.find(in_16_bits + "nibble quantize --model " + model.string() + " --type nf4 --out "),
            std::string::npos)
      << merged.text;
  const fs::path other = small.directory / "other";
  change_last_byte(model, other);
  const CommandOutput wrong = output_of_nibble(merge + other.string() + " --force 2>&1");
  EXPECT_NE(wrong.text.find("warning: this adapter was trained on another base than the one in " + other.string()),
            std::string::npos)
      << wrong.text;
}

}  // namespace
}  // namespace nibble
