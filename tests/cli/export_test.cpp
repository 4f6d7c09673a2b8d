// nibble export, seen from outside.

#include <cstdlib>

#include "nibble/tests/assets.h"
#include "nibble/tests/cli/trained_model.h"

namespace nibble {
namespace {

class Export : public test::TrainedModel {};

// No file larger than the result is written on the way: the merged model in f32 would be 320 KB.
TEST_F(Export, AnAdapterIsMergedOnTheWayIntoTheFile) {
  const std::string words = "export --model wide --adapter run/adapter --type q8_0 --out ";
  const CommandOutput free = run(words + "free.gguf");
  ASSERT_EQ(free.code, 0) << free.text;
  const auto kilobytes = std::filesystem::file_size(root_ / "free.gguf") / 1024 + 1;
  ASSERT_LT(kilobytes, 200u);
  const std::string limited = "bash -c 'ulimit -f " + std::to_string(kilobytes) + "; cd " + root_.path().string() +
                              "; OMP_NUM_THREADS=1 exec " + std::string(kProgram) + " " + words + "limited.gguf'";
  EXPECT_EQ(std::system(limited.c_str()), 0);
  EXPECT_EQ(test::read_bytes(root_ / "limited.gguf"), test::read_bytes(root_ / "free.gguf"));
}

TEST_F(Export, AModelWithoutATokenizerIsExportedWithoutOneAndThatIsSaid) {
  ASSERT_EQ(run("init --config wide.json --out bare").code, 0);
  const std::string note = "note: bare has no tokenizer, and so bare.gguf has none: llama.cpp computes with ids alone";
  const CommandOutput bare = run("export --model bare --out bare.gguf");
  EXPECT_EQ(bare.code, 0) << bare.text;
  EXPECT_NE(bare.text.find(note), std::string::npos) << bare.text;
  const std::string file = test::read_bytes(root_ / "bare.gguf");
  EXPECT_NE(file.find("tokenizer.ggml.model"), std::string::npos) << "which llama.cpp asks for";
  const CommandOutput meant = run("export --model bare --no-tokenizer --force --out bare.gguf");
  EXPECT_EQ(meant.text.find("note: "), std::string::npos) << meant.text;
  EXPECT_EQ(test::read_bytes(root_ / "bare.gguf"), file);
  EXPECT_EQ(run("export --model wide --out wide.gguf").text.find("has no tokenizer"), std::string::npos);
}

TEST_F(Export, AnAdapterByItselfHasNoOtherType) {
  const std::string words = "export --model wide --adapter run/adapter --adapter-only --out only.gguf";
  const CommandOutput refused = run(words + " --type q8_0");
  EXPECT_EQ(refused.code, 2) << refused.text;
  EXPECT_NE(refused.text.find("--type q8_0 with --adapter-only; leave it out"), std::string::npos) << refused.text;
  EXPECT_EQ(run(words).code, 0);
  EXPECT_EQ(run(words + " --type f32 --force").code, 0);
}

TEST_F(Export, OptionsThatNothingWouldLookAtAreRefused) {
  const std::string adapter = "--adapter run/adapter --weight 1 ", combine = "combine --out c " + adapter + adapter;
  const std::pair<std::string, std::string> cases[] = {
      {combine + "--method cat --majority-sign total",
       "--majority-sign with --method cat; leave it out: it is for ties"},
      {combine + "--method dare_linear --density 0.5 --majority-sign frequency",
       "--majority-sign with --method dare_linear; leave it out: it is for ties"},
      {combine + "--method ties --density 0.5 --seed 3", "--seed with --method ties; leave it out: it is for dare"},
      {"launch -n 2 --hosts a:2 --print slurm -- train r.json",
       "--hosts with --print slurm; leave it out: slurm chooses the hosts"},
      {"launch -n 2 --hosts a:2 --print kubernetes -- train r.json",
       "--hosts with --print kubernetes; leave it out: kubernetes chooses the hosts"}};
  for (const auto& [words, message] : cases) {
    const CommandOutput output = run(words);
    EXPECT_EQ(output.code, 2) << words;
    EXPECT_EQ(output.text, "error: " + message + "\n");
  }
  EXPECT_EQ(run(combine + "--method dare_ties --density 0.5 --seed 3 --majority-sign frequency").code, 0);
  EXPECT_NE(run("launch -n 2 --hosts a:2 --print mpirun -- train r.json").text.find(" a:2 "), std::string::npos);
}

TEST_F(Export, TypesMayBeWrittenAsLlamaCppWritesThem) {
  const auto exported = [&](const std::string& type) {
    const CommandOutput output = run("export --model wide --force --out m.gguf --type " + type);
    EXPECT_EQ(output.code, 0) << output.text;
    return test::read_bytes(root_ / "m.gguf");
  };
  EXPECT_EQ(exported("Q8_0"), exported("q8_0"));
  EXPECT_EQ(exported("Q4_K_M"), exported("q4_k_m"));
}

// Of a command with two outputs.
TEST_F(Export, WritesNothingWhereItsOtherOutputCannotBe) {
  const std::string words = "export --model wide --out m.gguf --modelfile out/Modelfile";
  EXPECT_EQ(run(words).code, 4);
  EXPECT_FALSE(exists(root_ / "m.gguf"));
  create_directory(root_ / "out");
  const CommandOutput again = run(words);
  EXPECT_EQ(again.code, 0) << again.text;
  EXPECT_TRUE(exists(root_ / "m.gguf") && exists(root_ / "out/Modelfile"));
  EXPECT_NE(
      run("export --model wide --out n.gguf --modelfile 'out/a b'").text.find("ollama create NAME -f 'out/a b'\n"),
      std::string::npos)
      << "as a shell reads it";
}

}  // namespace
}  // namespace nibble
