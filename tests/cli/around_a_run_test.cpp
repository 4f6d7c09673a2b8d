// The commands around a run, as processes: profile, report, compare, sweep, doctor, eval of choices, chat, manual.

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "nibble/core/text/chat/builtin_template.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Said {
  int code = -1;
  std::string text;
};

/// Runs `nibble WORDS` through a shell; standard output, or with " 2>&1" in the words both.
Said nibble_says(const std::string& words) {
  Said output;
  std::FILE* pipe = popen((std::string("OMP_NUM_THREADS=1 ") + kProgram + " " + words).c_str(), "r");
  std::array<char, 4096> piece{};
  while (pipe && std::fgets(piece.data(), piece.size(), pipe)) output.text += piece.data();
  const int status = pipe ? pclose(pipe) : -1;
  output.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return output;
}

/// A recipe for the small model on a few sentences.
struct SmallRun {
  test::TemporaryDirectory directory;
  fs::path model;

  explicit SmallRun(const fs::path& base) : model(base) {
    std::string lines;
    for (int i = 0; i < 12; ++i) {
      lines += json{{"prompt", "The dog"}, {"completion", " ran home " + std::to_string(i) + " times."}}.dump() + "\n";
    }
    test::write_bytes(directory / "d.jsonl", lines);
    const json recipe = {
        {"model", {{"path", base.string()}}},
        {"adapter", {{"r", 4}}},
        {"data", {{"train", (directory / "d.jsonl").string()}, {"max_length", 64}, {"eval_fraction", 0.25}}},
        {"train", {{"steps", 4}, {"samples", 2}, {"eval_every", 2}, {"threads", 1}}},
        {"output", {{"dir", (directory / "run").string()}}}};
    test::write_bytes(recipe_file(), recipe.dump());
  }
  fs::path recipe_file() const { return directory / "r.json"; }
  fs::path run() const { return directory / "run"; }
};

TEST(AroundARun, ProfiledRunLeavesTraceEventsSamplesAndReport) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const SmallRun small(model);
  const Said output = nibble_says("train --profile " + small.recipe_file().string() + " 2>&1");
  ASSERT_EQ(output.code, 0) << output.text;
  EXPECT_NE(output.text.find("bottleneck: "), std::string::npos) << output.text;
  EXPECT_NE(output.text.find("sample: "), std::string::npos);
  EXPECT_NE(output.text.find("of peak"), std::string::npos);
  const json trace = json::parse(test::read_bytes(small.run() / "profile/rank-0.json"));
  std::map<std::string, int> phases;
  for (const json& event : trace["traceEvents"]) {
    if (event.contains("cat")) ++phases[event["cat"]];
  }
  for (const char* phase : {"data", "forward", "backward", "optimizer", "io", "evaluation"})
    EXPECT_GT(phases[phase], 0) << phase;
  EXPECT_FALSE(fs::is_empty(small.run() / "tensorboard"));
  const std::string page = test::read_bytes(small.run() / "report.html");
  EXPECT_NE(page.find("Samples before and after"), std::string::npos);
  EXPECT_NE(page.find("after step 0"), std::string::npos);
  const json facts = json::parse(test::read_bytes(small.run() / "run.json"));
  EXPECT_EQ(facts["data"]["records"], 12);
  EXPECT_GT(facts["model"]["trained_parameters"], 0);
}

TEST(AroundARun, MergeWarnsWhereTheBaseIsNotTheRuns) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const SmallRun small(model);
  const Said trained = nibble_says("train " + small.recipe_file().string() + " model.quantize=nf4 train.steps=1 2>&1");
  ASSERT_EQ(trained.code, 0) << trained.text;
  EXPECT_NE(trained.text.find("done: " + (small.run() / "adapter").string()), std::string::npos) << trained.text;
  const std::string merge = "merge --adapter " + (small.run() / "adapter").string() + " --out ";
  const Said unasked = nibble_says(merge + (small.directory / "a").string() + " 2>&1");
  EXPECT_EQ(unasked.code, 0) << unasked.text;
  EXPECT_NE(unasked.text.find("warning: this adapter was trained on the base in nf4"), std::string::npos);
  EXPECT_NE(unasked.text.find("nibble quantize --model " + model.string() + " --type nf4"), std::string::npos);
  const Said asked = nibble_says(merge + (small.directory / "b").string() + " --base original 2>&1");
  EXPECT_EQ(asked.text.find("warning"), std::string::npos) << asked.text;
  const fs::path four_bit = small.directory / "nf4";
  ASSERT_EQ(nibble_says("quantize --model " + model.string() + " --out " + four_bit.string()).code, 0);
  const Said right = nibble_says(merge + (small.directory / "c").string() + " --model " + four_bit.string() + " 2>&1");
  EXPECT_EQ(right.code, 0) << right.text;
  EXPECT_EQ(right.text.find("warning"), std::string::npos) << right.text;
}

TEST(AroundARun, ARunSaysFirstWhatItIsAboutToDo) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const SmallRun small(model);
  const std::string recipe = small.recipe_file().string();
  const Said lora = nibble_says("train " + recipe + " train.steps=1 2>&1");
  ASSERT_EQ(lora.code, 0) << lora.text;
  EXPECT_NE(lora.text.find("\ntraining 1 step\nLoRA on " + model.string() +
                           ": 283,152 parameters, 23,120 of them trained (8.17%)\ncomputing in "),
            std::string::npos)
      << lora.text;
  EXPECT_EQ(lora.text.find("time: at least 0s"), std::string::npos) << "which tells nothing";
  for (const char* part : {" on 1 thread\ndata: 9 samples, ", " trained); 1 step\nplanned memory: "}) {
    EXPECT_NE(lora.text.find(part), std::string::npos) << part << "\n" << lora.text;
  }
  // It goes on where the sample was cut, and shows that.
  EXPECT_NE(test::read_bytes(small.run() / "samples.jsonl").find("\xe2\x80\xa6\""), std::string::npos);
}

TEST(AroundARun, APlanTellsTheTimeOfTheWholeRun) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const SmallRun small(model);
  test::write_bytes(small.directory / "c.json", R"({"name": "c", "flops": 1e9, "efficiency": 0.5, "memory": 1e10,
      "memory_bandwidth": 1e10, "link_bandwidth": 1e9, "node_bandwidth": 1e9, "ranks_per_node": 1, "overlap": 1,
      "growth": 0})");
  const std::string plan =
      "plan " + small.recipe_file().string() + " --cluster " + (small.directory / "c.json").string() + " ";
  const Said by_steps = nibble_says(plan + "train.steps=100000 2>&1");
  ASSERT_EQ(by_steps.code, 0) << by_steps.text;
  EXPECT_NE(by_steps.text.find("\nwhole run: 100,000 steps, "), std::string::npos) << by_steps.text;
  EXPECT_NE(by_steps.text.find(", 260,032 weights, 23,120 trained, steps of "), std::string::npos) << by_steps.text;
  EXPECT_EQ(nibble_says("plan " + small.recipe_file().string() + " 2>&1").text.find("e+0"), std::string::npos);
  EXPECT_NE(by_steps.text.find(", 1 thread a rank\n"), std::string::npos) << by_steps.text;
  const json output = json::parse(nibble_says(plan + "train.steps=null train.epochs=3 --json").text);
  EXPECT_EQ(output["total_steps"], 9) << "packed, three steps an epoch";
  EXPECT_NEAR(output["run_seconds"].get<double>(), 9 * output["step_seconds"].get<double>(), 1e-9);
  const Said no_data = nibble_says(plan + "train.steps=null train.epochs=1 data.train=absent.jsonl 2>&1");
  EXPECT_EQ(no_data.code, 0) << no_data.text;
  EXPECT_NE(no_data.text.find("note: the whole run's time is not known: absent.jsonl"), std::string::npos);
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

TEST(AroundARun, OneIsNotSaidAsMany) {
  const SmallRun small(test::data_path("stories-llama"));
  test::write_bytes(small.directory / "d.jsonl", R"({"prompt": "The dog", "completion": " ran home."})");
  for (const std::string command : {"validate", "preview", "train"}) {
    const Said output =
        nibble_says(command + " " + small.recipe_file().string() + " data.eval_fraction=0 train.steps=1 2>&1");
    ASSERT_EQ(output.code, 0) << output.text;
    EXPECT_NE(output.text.find("training data: 1 sample, "), std::string::npos) << output.text;
    for (const char* many : {"\n1 samples", " 1 samples", "\n1 steps", " 1 steps"}) {
      EXPECT_EQ(output.text.find(many), std::string::npos) << output.text;
    }
  }
}

// Every record trains something, the end of its answer.
TEST(AroundARun, ADataSetOfEmptyAnswersIsRefusedBeforeItIsTrained) {
  const SmallRun small(test::data_path("stories-llama"));
  const auto validated = [&](int empty) {
    std::string lines;
    for (int i = 0; i < 2000; ++i)
      lines += R"({"prompt": "The dog", "completion": ")" + std::string(i < empty ? "" : " ran home.") + "\"}\n";
    test::write_bytes(small.directory / "d.jsonl", lines);
    return nibble_says("validate " + small.recipe_file().string() + " data.eval_fraction=0 2>&1");
  };
  const Said ruined = validated(1990);
  EXPECT_EQ(ruined.code, 3) << ruined.text;
  EXPECT_NE(ruined.text.find("d.jsonl: 1,990 of 2,000 records are dropped or empty (1,990 train the end alone of an "
                             "empty answer, "),
            std::string::npos)
      << ruined.text;
  const Said shown = nibble_says("preview " + small.recipe_file().string() + " data.eval_fraction=0 2>&1");
  EXPECT_EQ(shown.code, 0) << shown.text;
  EXPECT_NE(shown.text.find("warning: train refuses these data: more than data.max_dropped (0.5)"), std::string::npos);
  const Said few = validated(20);
  EXPECT_EQ(few.code, 0) << few.text;
  EXPECT_NE(few.text.find("warning: 20 of 2,000 records have an empty answer"), std::string::npos) << few.text;
}

// The adapter alone, far from the run that made it.
TEST(AroundARun, ACopiedAdapterKnowsItsBase) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const SmallRun small(model);
  ASSERT_EQ(nibble_says("train " + small.recipe_file().string() + " train.steps=1 2>&1").code, 0);
  const fs::path alone = small.directory / "alone", other = small.directory / "other";
  fs::create_directories(alone);
  fs::copy(small.run() / "adapter", alone);
  fs::remove_all(small.run());
  const std::string merge = "merge --adapter " + alone.string() + " --out ";
  const Said right = nibble_says(merge + (small.directory / "a").string() + " 2>&1");
  EXPECT_EQ(right.code, 0) << right.text;
  EXPECT_EQ(right.text.find("warning"), std::string::npos) << right.text;
  change_last_byte(model, other);
  const std::string into_other = " --model " + other.string();
  const Said wrong = nibble_says(merge + (small.directory / "b").string() + into_other + " 2>&1");
  EXPECT_EQ(wrong.code, 0) << wrong.text;
  EXPECT_NE(wrong.text.find("warning: this adapter was trained on another base than the one in " + other.string() +
                            ", where model.safetensors has other content"),
            std::string::npos)
      << wrong.text;
  const Said meant = nibble_says(merge + (small.directory / "c").string() + into_other + " --base original 2>&1");
  EXPECT_EQ(meant.text.find("warning"), std::string::npos) << meant.text;
}

// An adapter on another base answers something, and nothing in the answer tells.
TEST(AroundARun, EveryCommandWarnsOfAnotherBase) {
  const fs::path model = test::data_path("stories-llama");
  const SmallRun small(model);
  ASSERT_EQ(nibble_says("train " + small.recipe_file().string() + " train.steps=1 2>&1").code, 0);
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
      return nibble_says(name + " --adapter " + adapter + " --model " + base.string() + more + rest + " 2>&1");
    };
    const Said right = with(model, "");
    EXPECT_EQ(right.code, 0) << right.text;
    EXPECT_EQ(right.text.find("warning: this adapter"), std::string::npos) << right.text;
    const Said wrong = with(other, name == "export" ? " --force" : "");
    EXPECT_EQ(wrong.code, 0) << wrong.text;
    EXPECT_NE(wrong.text.find("warning: this adapter was trained on another base than the one in " + other.string() +
                              ", where model.safetensors has other content"),
              std::string::npos)
        << command << "\n"
        << wrong.text;
  }
  const Said in_4_bits = nibble_says("eval --quantize nf4 --adapter " + adapter + " --model " + model.string() +
                                     " --data " + data + " 2>&1");
  EXPECT_NE(in_4_bits.text.find("warning: this adapter was trained on the base without quantization; "
                                "--quantize none gives that\n"),
            std::string::npos)
      << in_4_bits.text;
  const std::string continued = "train " + small.recipe_file().string() + " adapter.path=" + adapter + " output.dir=";
  const Said same_base = nibble_says(continued + out + "-same 2>&1");
  EXPECT_EQ(same_base.code, 0) << same_base.text;
  EXPECT_EQ(same_base.text.find("warning: this adapter"), std::string::npos) << same_base.text;
  const Said other_base = nibble_says(continued + out + "-other model.path=" + other.string() + " 2>&1");
  EXPECT_NE(other_base.text.find("warning: this adapter was trained on another base"), std::string::npos)
      << other_base.text;
  // A config.json as Python writes it, of which Mamba-2's has Infinity.
  nlohmann::json config = nlohmann::json::parse(std::ifstream(other / "config.json"));
  config["time_step_limit"] = "LIMIT";
  std::string text = config.dump();
  text.replace(text.find("\"LIMIT\""), 7, "[0.0, Infinity]");
  fs::remove(other / "config.json");  // it may be a link
  std::ofstream(other / "config.json") << text;
  const Said infinite = nibble_says(continued + out + "-infinite model.path=" + other.string() + " 2>&1");
  EXPECT_EQ(infinite.code, 0) << infinite.text;
}

// ... and of a base that is held otherwise than in the training.
TEST(AroundARun, TheBitsThatTheBaseWasHeldInAreKnown) {
  const fs::path model = test::data_path("stories-llama");
  const SmallRun small(model);
  ASSERT_EQ(nibble_says("train " + small.recipe_file().string() + " model.quantize=nf4 train.steps=1 2>&1").code, 0);
  const std::string named = " --adapter " + (small.run() / "adapter").string() + " --model ";
  const std::string data = " --data " + (small.directory / "d.jsonl").string() + " 2>&1";
  const std::string in_16_bits = "warning: this adapter was trained on the base in nf4; ";
  const Said whole = nibble_says("eval" + named + model.string() + data);
  EXPECT_NE(whole.text.find(in_16_bits + "--quantize nf4 gives that\n"), std::string::npos) << whole.text;
  const Said held = nibble_says("eval --quantize nf4" + named + model.string() + data);
  EXPECT_EQ(held.text.find("warning: this adapter"), std::string::npos) << held.text;
  const std::string merge = "merge --out " + (small.directory / "m").string() + named;
  const Said merged = nibble_says(merge + model.string() + " 2>&1");
  EXPECT_NE(merged.text.find(in_16_bits + "nibble quantize --model " + model.string() + " --type nf4 --out "),
            std::string::npos)
      << merged.text;
  const fs::path other = small.directory / "other";
  change_last_byte(model, other);
  const Said wrong = nibble_says(merge + other.string() + " --force 2>&1");
  EXPECT_NE(wrong.text.find("warning: this adapter was trained on another base than the one in " + other.string()),
            std::string::npos)
      << wrong.text;
}

// A full run's model speaks as it was trained to, not as its base did.
TEST(AroundARun, AFullRunKeepsTheTemplateItWasTrainedWith) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const SmallRun small(model);
  const Said trained = nibble_says("train " + small.recipe_file().string() +
                                   " adapter=null model.quantize=none data.template=plain train.steps=1 2>&1");
  ASSERT_EQ(trained.code, 0) << trained.text;
  EXPECT_EQ(test::read_bytes(small.run() / "model/chat_template.jinja"), builtin_chat_template_source("plain"));
}

// What a run writes to a terminal of so many columns.
std::string on_a_terminal(const std::string& recipe, unsigned short columns) {
  const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  if (child == 0) {
    execl(kProgram, kProgram, "train", recipe.c_str(), nullptr);
    _exit(127);
  }
  std::string text;
  std::array<char, 4096> piece{};
  for (ssize_t count = 0; (count = read(terminal, piece.data(), piece.size())) > 0;) {
    text.append(piece.data(), static_cast<size_t>(count));
  }
  int status = 0;
  waitpid(child, &status, 0);
  close(terminal);
  EXPECT_EQ(status, 0) << text;
  return text;
}

TEST(AroundARun, ProgressFitsANarrowTerminalAndKeepsTheTimeLeft) {
  const std::filesystem::path model = test::data_path("stories-llama");
  for (const unsigned short columns : {60, 100}) {
    const SmallRun small(model);
    const std::string text = on_a_terminal(small.recipe_file().string(), columns);
    int lines = 0, evaluating = 0;
    for (size_t end = text.find("\x1b[K"); end != std::string::npos; end = text.find("\x1b[K", end + 1)) {
      const std::string line = text.substr(text.rfind('\r', end) + 1, end - text.rfind('\r', end) - 1);
      EXPECT_LT(line.size(), columns) << line;
      if (line.empty()) continue;  // one that is wiped
      EXPECT_TRUE(line.starts_with("step ")) << line;
      if (line.find("  evaluation ") != std::string::npos) {
        evaluating += line.find("  evaluation 0/") != std::string::npos;  // others where it takes long
        continue;
      }
      EXPECT_TRUE(line.starts_with("step 4/4") || line.find("  left ") != std::string::npos) << line;
      EXPECT_EQ(line.find("  lr ") != std::string::npos, columns == 100) << line;
      ++lines;
    }
    EXPECT_GE(lines, 2) << text;
    EXPECT_EQ(evaluating, 2) << text;
    for (const char* result : {"step 2  evaluation loss", "step 4  evaluation loss"}) {
      EXPECT_NE(text.find(std::string("\r\x1b[K") + result), std::string::npos) << "in place of its progress\n" << text;
    }
  }
}

TEST(AroundARun, SweepRunsTheGridAndGoesOnWhereItStopped) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const SmallRun small(model);
  const std::string sweep =
      "sweep " + small.recipe_file().string() + " lr=1e-3,1e-4 r=2,4 steps=2 eval_every=1 --jobs 2";
  const Said first = nibble_says(sweep + " --json");
  ASSERT_EQ(first.code, 0) << first.text;
  const json runs = json::parse(first.text)["runs"];
  ASSERT_EQ(runs.size(), 4u);
  for (size_t i = 1; i < 4; ++i) EXPECT_LE(runs[i - 1]["eval_loss"].get<double>(), runs[i]["eval_loss"].get<double>());
  EXPECT_TRUE(fs::exists(small.run() / "sweep.html"));
  fs::remove_all(small.run() / "lr=1e-4,r=4");
  const Said second = nibble_says(sweep + " 2>&1");
  EXPECT_EQ(second.code, 0);
  EXPECT_NE(second.text.find("lr=1e-3,r=2 is done"), std::string::npos) << second.text;
  EXPECT_NE(second.text.find("lr=1e-4,r=4 starts"), std::string::npos) << second.text;
  // As the tutorial says, twice: the pages of the sweep and of the first time lie beside the runs.
  const std::string all = small.run().string() + "/*";
  Said compared;
  for (int time = 0; time < 2; ++time) {
    compared = nibble_says("compare --json " + all + " --out " + (small.run() / "compare.html").string());
    ASSERT_EQ(compared.code, 0);
  }
  EXPECT_EQ(json::parse(compared.text)["runs"].size(), 4U);
  EXPECT_TRUE(json::parse(compared.text)["recipe_differences"].contains("optimizer.lr"));
}

TEST(AroundARun, SweepSaysWhichRunFailedAndEndsWithItsCode) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const SmallRun small(model);
  const Said output = nibble_says("sweep " + small.recipe_file().string() + " path=x lr=1,2 2>&1");
  EXPECT_EQ(output.code, 2) << output.text;  // model.path or adapter.path?
  const Said gone = nibble_says("sweep " + small.recipe_file().string() + " data.train=gone.jsonl lr=1,2 2>&1");
  EXPECT_EQ(gone.code, 3) << gone.text;
  EXPECT_NE(gone.text.find("lr=1 failed: error: "), std::string::npos) << gone.text;
}

TEST(AroundARun, ReportWritesPlotsAsPictures) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const SmallRun small(model);
  ASSERT_EQ(nibble_says("train " + small.recipe_file().string() + " 2>/dev/null").code, 0);
  const fs::path plots = small.directory / "plots";
  const Said output = nibble_says("report " + small.run().string() + " --plots " + plots.string());
  ASSERT_EQ(output.code, 0);
  EXPECT_TRUE(test::read_bytes(plots / "loss.svg").starts_with("<svg"));
  EXPECT_EQ(nibble_says("report " + plots.string() + " 2>/dev/null").code, 3);
}

TEST(AroundARun, ChatSwitchesTheAdapterOffAndOn) {
  const std::filesystem::path model = test::data_path("stories-llama");
  // With the last, weights of the base are others as well: it is opened again.
  for (const std::string more : {"", " adapter.modules_to_save='[\"lm_head\"]'"}) {
    const SmallRun small(model);
    const std::string steps = " optimizer.lr=0.05 train.steps=12" + more;
    ASSERT_EQ(nibble_says("train " + small.recipe_file().string() + steps + " 2>/dev/null").code, 0);
    test::write_bytes(small.directory / "lines",
                      "Hi\n/reset\n/adapter off\n/adapter ?\nHi\n/reset\n/adapter on\nHi\n/addapter\n/quit\nHi\n");
    const std::string chat = "chat --template plain --max-new-tokens 12 --model " + model.string() + " < " +
                             (small.directory / "lines").string();
    const std::string adapter = " --adapter " + (small.run() / "adapter").string();
    const Said output = nibble_says(chat + adapter + " 2>&1");
    ASSERT_EQ(output.code, 0) << output.text;
    EXPECT_NE(output.text.find("is off\n/adapter takes on or off, not ?; alone it changes"), std::string::npos);
    EXPECT_NE(output.text.find("did you mean /adapter?"), std::string::npos);
    const Said only = nibble_says(chat + adapter + " 2>/dev/null"), base = nibble_says(chat + " 2>/dev/null");
    const std::string with = only.text.substr(0, only.text.find('\n') + 1);
    const std::string without = base.text.substr(0, base.text.find('\n') + 1);
    EXPECT_NE(with, without);
    EXPECT_EQ(only.text, with + without + with) << more;
  }
}

TEST(AroundARun, EvalCountsChoices) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const test::TemporaryDirectory directory;
  test::write_bytes(directory / "q.jsonl",
                    "{\"question\": \"Once upon a\", \"choices\": [\"qxzk\", \"time\"], \"answer\": \"B\"}\n");
  const Said output = nibble_says("eval --format choices --json --model " + model.string() + " --data " +
                                  (directory / "q.jsonl").string());
  ASSERT_EQ(output.code, 0);
  EXPECT_EQ(json::parse(output.text)["accuracy"], 1.0);
}

TEST(AroundARun, PreviewTellsSharesLengthsAndWhatIsCut) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const SmallRun small(model);
  const Said output =
      nibble_says("preview --json " + small.recipe_file().string() + " data.max_length=12 data.truncate=cut");
  ASSERT_EQ(output.code, 0);
  const json found = json::parse(output.text);
  EXPECT_GT(found["truncated"], 0);
  EXPECT_GT(found["trained_share"], 0.2);
  EXPECT_LT(found["trained_share"], 1.0);
  const Said shown = nibble_says("preview " + small.recipe_file().string());
  for (const char* part :
       {"The dog[[ ran home ", "trained; the longest sample has", "--- lengths in tokens", "steps; the first has"}) {
    EXPECT_NE(shown.text.find(part), std::string::npos) << part << " in " << shown.text;
  }
}

TEST(AroundARun, PreviewWarnsOfAnswersThatDoNotEnd) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const SmallRun small(model);
  test::write_bytes(small.directory / "d.jsonl",
                    "{\"input_ids\": [1, 403, 407, 261]}\n{\"input_ids\": [1, 403, 407, 2]}\n");
  const Said output =
      nibble_says("preview " + small.recipe_file().string() + " data.eval_fraction=null train.eval_every=null 2>&1");
  ASSERT_EQ(output.code, 0) << output.text;
  EXPECT_NE(output.text.find("warning: 1 sample trains no token that ends a text"), std::string::npos) << output.text;
}

TEST(AroundARun, DoctorLooksAtTheMachine) {
  const Said output = nibble_says("doctor --json --dir /tmp");
  ASSERT_EQ(output.code, 0);
  std::map<std::string, std::string> findings;
  const json parsed = json::parse(output.text);
  for (const json& finding : parsed["findings"]) findings[finding["name"]] = finding["value"];
  for (const char* name : {"cpu", "cores", "numa", "memory", "disk", "mpi", "arithmetic", "memory speed"}) {
    EXPECT_FALSE(findings[name].empty()) << name;
  }
  if (findings["cpu"].find("kernels for baseline") != std::string::npos) return;
  setenv("NIBBLE_ISA", "baseline", 1);
  const Said capped = nibble_says("doctor --quick --dir /tmp");
  unsetenv("NIBBLE_ISA");
  EXPECT_NE(capped.text.find("-> NIBBLE_ISA keeps nibble from this CPU's "), std::string::npos) << capped.text;
}

TEST(AroundARun, ManualPagesAndCompletionsComeFromTheCommands) {
  const test::TemporaryDirectory directory;
  ASSERT_EQ(nibble_says("man --out " + directory.path().string()).code, 0);
  const std::string page = test::read_bytes(directory / "nibble-train.1");
  EXPECT_TRUE(page.starts_with(".TH nibble-train 1"));
  EXPECT_NE(page.find("\\-\\-profile"), std::string::npos);
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const Said output = nibble_says(std::string("completion ") + shell);
    EXPECT_EQ(output.code, 0);
    EXPECT_NE(output.text.find("sagemaker-train"), std::string::npos) << shell;
  }
  EXPECT_EQ(nibble_says("completion tcsh 2>/dev/null").code, 2);
}

}  // namespace
}  // namespace nibble
