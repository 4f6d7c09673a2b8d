// nibble export, seen from outside.

#include <gmock/gmock.h>

#include <cstdlib>

#include "nibble/tests/assets.h"
#include "nibble/tests/cli/small_model.h"

namespace nibble {
namespace {

using test::SmallModel;

class Export : public SmallModel {
 protected:
  /// A model of 80,000 weights, and an adapter for it in run/adapter.
  void SetUp() override {
    SmallModel::SetUp();
    nlohmann::json config = nlohmann::json::parse(test::read_bytes(root_ / "config.json"));
    config["hidden_size"] = 64;
    config["intermediate_size"] = 128;
    test::write_bytes(root_ / "wide.json", config.dump());
    ASSERT_EQ(run("init --config wide.json --out wide").code, 0);
    for (const auto& file : std::filesystem::directory_iterator(root_ / "tokenizer")) {
      if (!exists(root_ / "wide" / file.path().filename())) {
        copy(file.path(), root_ / "wide" / file.path().filename());
      }
    }
    test::write_bytes(root_ / "d.jsonl", "{\"text\": \"What is it? It is this, or that.\"}\n");
    test::write_bytes(root_ / "r.json",
                      R"({"model": {"path": "wide"}, "adapter": {"r": 2}, "data": {"train": "d.jsonl"},
                                            "train": {"steps": 1, "threads": 1}, "output": {"dir": "run"}})");
    const Said trained = run("train r.json");
    ASSERT_EQ(trained.code, 0) << trained.text;
  }
};

// No file larger than the result is written on the way: the merged model in f32 would be 320 KB.
TEST_F(Export, AnAdapterIsMergedOnTheWayIntoTheFile) {
  const std::string words = "export --model wide --adapter run/adapter --type q8_0 --out ";
  const Said free = run(words + "free.gguf");
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
  const Said bare = run("export --model bare --out bare.gguf");
  EXPECT_EQ(bare.code, 0) << bare.text;
  EXPECT_NE(bare.text.find(note), std::string::npos) << bare.text;
  const std::string file = test::read_bytes(root_ / "bare.gguf");
  EXPECT_NE(file.find("tokenizer.ggml.model"), std::string::npos) << "which llama.cpp asks for";
  const Said meant = run("export --model bare --no-tokenizer --force --out bare.gguf");
  EXPECT_EQ(meant.text.find("note: "), std::string::npos) << meant.text;
  EXPECT_EQ(test::read_bytes(root_ / "bare.gguf"), file);
  EXPECT_EQ(run("export --model wide --out wide.gguf").text.find("has no tokenizer"), std::string::npos);
}

TEST_F(Export, MergedIn4BitsAgainItSaysWhatThatCosts) {
  ASSERT_EQ(run("quantize --model wide --out wide-nf4").code, 0);
  ASSERT_EQ(run("train r.json model.path=wide-nf4 output.dir=run-nf4 optimizer.lr=1e-6").code, 0);
  const std::string merge = "merge --adapter run-nf4 --model wide-nf4 --out merged --force ";
  const Said rounded = run(merge + "--dtype nf4");
  EXPECT_EQ(rounded.code, 0) << rounded.text;
  EXPECT_NE(rounded.text.find("warning: rounding to 4 bits again moves weights as far as the adapter does"),
            std::string::npos)
      << rounded.text;
  EXPECT_NE(rounded.text.find(" on average by rounding to 4 bits again\n"), std::string::npos) << rounded.text;
  EXPECT_EQ(run(merge + "--dtype bf16").text.find("4 bits again"), std::string::npos);
}

// Of a command with two outputs.
TEST_F(Export, WritesNothingWhereItsOtherOutputCannotBe) {
  const std::string words = "export --model wide --out m.gguf --modelfile out/Modelfile";
  EXPECT_EQ(run(words).code, 4);
  EXPECT_FALSE(exists(root_ / "m.gguf"));
  create_directory(root_ / "out");
  const Said again = run(words);
  EXPECT_EQ(again.code, 0) << again.text;
  EXPECT_TRUE(exists(root_ / "m.gguf") && exists(root_ / "out/Modelfile"));
  EXPECT_NE(
      run("export --model wide --out n.gguf --modelfile 'out/a b'").text.find("ollama create NAME -f 'out/a b'\n"),
      std::string::npos)
      << "as a shell reads it";
  EXPECT_EQ(run("report run --out page.html --plots m.gguf/plots").code, 4);
  EXPECT_FALSE(exists(root_ / "page.html"));
}

TEST_F(Export, PagesReplaceNoFileOfOthersUnasked) {
  for (const std::string words : {"report run --out page.html", "compare run --out page.html"}) {
    for (const std::string more : {"", " --force"}) {
      test::write_bytes(root_ / "page.html", "<!doctype html>\n<title>My thesis</title>");
      const Said kept = run(words + more);
      EXPECT_EQ(kept.code, 2) << words;
      EXPECT_EQ(kept.text,
                "error: page.html: is no page of nibble; choose another name, or replace it with --force=anything\n");
      EXPECT_TRUE(test::read_bytes(root_ / "page.html").ends_with("My thesis</title>")) << words;
    }
    for (const std::string more : {" --force=anything", "", " --force"}) {
      const Said written = run(words + more);
      EXPECT_EQ(written.code, 0) << written.text;
      EXPECT_TRUE(test::read_bytes(root_ / "page.html").ends_with("</html>\n")) << words;
    }
  }
  EXPECT_EQ(run("report run").code, 0) << "over the page that train wrote";
  test::write_bytes(root_ / "run/report.html", "notes");
  EXPECT_EQ(run("report run").code, 2);
  test::write_bytes(root_ / "run/report.html", "");
  test::write_bytes(root_ / "loss.svg", "<svg>mine</svg>");
  EXPECT_EQ(run("report run --plots .").code, 2);
  EXPECT_EQ(test::read_bytes(root_ / "loss.svg"), "<svg>mine</svg>");
  for (const char* more : {" --force=anything", ""}) EXPECT_EQ(run("report run --plots ." + std::string(more)).code, 0);
  EXPECT_GT(std::filesystem::file_size(root_ / "loss.svg"), 100u);
}

TEST_F(Export, ToolsForCheckingStandUnderAHeadingOfTheirOwn) {
  const std::string help = run("--help").text;
  const size_t heading = help.find("Tools for checking");
  ASSERT_NE(heading, std::string::npos) << help;
  for (const char* tool : {"logits", "gradients", "tokenize ", "template"}) {
    EXPECT_GT(help.find("\n  " + std::string(tool)), heading) << tool;
  }
  EXPECT_LT(help.find("\n  train"), heading);
}

}  // namespace
}  // namespace nibble
