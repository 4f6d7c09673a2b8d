// The commands around a run, as processes: profile, report, compare, sweep, doctor, eval of choices, chat.

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <map>

#include "nibble/core/text/chat/builtin_template.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/cli/small_recipe.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::CommandOutput;
using test::output_of_nibble;
using test::SmallRecipe;

TEST(AroundARun, ProfiledRunLeavesTraceEventsSamplesAndReport) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const SmallRecipe small(model);
  const CommandOutput output = output_of_nibble("train --profile " + small.recipe_file().string() + " 2>&1");
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

TEST(AroundARun, ARunSaysFirstWhatItIsAboutToDo) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const SmallRecipe small(model);
  const std::string recipe = small.recipe_file().string();
  const CommandOutput lora = output_of_nibble("train " + recipe + " train.steps=1 2>&1");
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

TEST(AroundARun, APlanReportsTheTimeOfTheWholeRun) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const SmallRecipe small(model);
  test::write_bytes(small.directory / "c.json", R"({"name": "c", "flops": 1e9, "efficiency": 0.5, "memory": 1e10,
      "memory_bandwidth": 1e10, "link_bandwidth": 1e9, "node_bandwidth": 1e9, "ranks_per_node": 1, "overlap": 1,
      "growth": 0})");
  const std::string plan =
      "plan " + small.recipe_file().string() + " --cluster " + (small.directory / "c.json").string() + " ";
  const CommandOutput by_steps = output_of_nibble(plan + "train.steps=100000 2>&1");
  ASSERT_EQ(by_steps.code, 0) << by_steps.text;
  EXPECT_NE(by_steps.text.find("\nwhole run: 100,000 steps, "), std::string::npos) << by_steps.text;
  EXPECT_NE(by_steps.text.find(", 260,032 weights, 23,120 trained, steps of "), std::string::npos) << by_steps.text;
  EXPECT_EQ(output_of_nibble("plan " + small.recipe_file().string() + " 2>&1").text.find("e+0"), std::string::npos);
  EXPECT_NE(by_steps.text.find(", 1 thread a rank\n"), std::string::npos) << by_steps.text;
  const json output = json::parse(output_of_nibble(plan + "train.steps=null train.epochs=3 --json").text);
  EXPECT_EQ(output["total_steps"], 9) << "packed, three steps an epoch";
  EXPECT_NEAR(output["run_seconds"].get<double>(), 9 * output["step_seconds"].get<double>(), 1e-9);
  const CommandOutput no_data = output_of_nibble(plan + "train.steps=null train.epochs=1 data.train=absent.jsonl 2>&1");
  EXPECT_EQ(no_data.code, 0) << no_data.text;
  EXPECT_NE(no_data.text.find("note: the whole run's time is not known: absent.jsonl"), std::string::npos);
}

TEST(AroundARun, OneIsNotSaidAsMany) {
  const SmallRecipe small(test::data_path("stories-llama"));
  test::write_bytes(small.directory / "d.jsonl", R"({"prompt": "The dog", "completion": " ran home."})");
  for (const std::string command : {"validate", "preview", "train"}) {
    const CommandOutput output =
        output_of_nibble(command + " " + small.recipe_file().string() + " data.eval_fraction=0 train.steps=1 2>&1");
    ASSERT_EQ(output.code, 0) << output.text;
    EXPECT_NE(output.text.find("training data: 1 sample, "), std::string::npos) << output.text;
    for (const char* many : {"\n1 samples", " 1 samples", "\n1 steps", " 1 steps"}) {
      EXPECT_EQ(output.text.find(many), std::string::npos) << output.text;
    }
  }
}

TEST(AroundARun, NotesOfTheAdapterAreNotesBeforeARunToo) {
  const SmallRecipe small(test::data_path("stories-llama"));
  for (const std::string command : {"validate", "preview", "train"}) {
    const CommandOutput output =
        output_of_nibble(command + " " + small.recipe_file().string() +
                         R"( 'adapter.target_modules=["q_proj","absent"]' train.steps=1 2>&1)");
    ASSERT_EQ(output.code, 0) << output.text;
    EXPECT_NE(output.text.find("note: these fit no module: target_modules \"absent\"\n"), std::string::npos)
        << output.text;
  }
}

// Every record trains something, the end of its answer.
TEST(AroundARun, ADataSetOfEmptyAnswersIsRefusedBeforeItIsTrained) {
  const SmallRecipe small(test::data_path("stories-llama"));
  const auto validated = [&](int empty) {
    std::string lines;
    for (int i = 0; i < 2000; ++i)
      lines += R"({"prompt": "The dog", "completion": ")" + std::string(i < empty ? "" : " ran home.") + "\"}\n";
    test::write_bytes(small.directory / "d.jsonl", lines);
    return output_of_nibble("validate " + small.recipe_file().string() + " data.eval_fraction=0 2>&1");
  };
  const CommandOutput ruined = validated(1990);
  EXPECT_EQ(ruined.code, 3) << ruined.text;
  EXPECT_NE(ruined.text.find("d.jsonl: 1,990 of 2,000 records are dropped or empty (1,990 train the end alone of an "
                             "empty answer or text, "),
            std::string::npos)
      << ruined.text;
  const CommandOutput shown =
      output_of_nibble("preview " + small.recipe_file().string() + " data.eval_fraction=0 2>&1");
  EXPECT_EQ(shown.code, 0) << shown.text;
  EXPECT_NE(shown.text.find("warning: train refuses these data: more than data.max_dropped (0.5)"), std::string::npos);
  const CommandOutput few = validated(20);
  EXPECT_EQ(few.code, 0) << few.text;
  EXPECT_NE(few.text.find("warning: 20 of 2,000 records have an empty answer"), std::string::npos) << few.text;
}

// A full run's model speaks as it was trained to, not as its base did.
TEST(AroundARun, AFullRunKeepsTheTemplateItWasTrainedWith) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const SmallRecipe small(model);
  const CommandOutput trained =
      output_of_nibble("train " + small.recipe_file().string() +
                       " adapter=null model.quantize=none data.template=plain train.steps=1 2>&1");
  ASSERT_EQ(trained.code, 0) << trained.text;
  EXPECT_EQ(test::read_bytes(small.run() / "model/chat_template.jinja"), builtin_chat_template_source("plain"));
}

// What a run writes to a terminal of so many columns.
std::string train_on_a_terminal(const std::string& recipe, unsigned short columns) {
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
    const SmallRecipe small(model);
    const std::string text = train_on_a_terminal(small.recipe_file().string(), columns);
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
  const SmallRecipe small(model);
  const std::string sweep =
      "sweep " + small.recipe_file().string() + " lr=1e-3,1e-4 r=2,4 steps=2 eval_every=1 --jobs 2";
  const CommandOutput first = output_of_nibble(sweep + " --json");
  ASSERT_EQ(first.code, 0) << first.text;
  const json runs = json::parse(first.text)["runs"];
  ASSERT_EQ(runs.size(), 4u);
  for (size_t i = 1; i < 4; ++i) EXPECT_LE(runs[i - 1]["eval_loss"].get<double>(), runs[i]["eval_loss"].get<double>());
  EXPECT_TRUE(fs::exists(small.run() / "sweep.html"));
  fs::remove_all(small.run() / "lr=1e-4,r=4");
  const CommandOutput second = output_of_nibble(sweep + " 2>&1");
  EXPECT_EQ(second.code, 0);
  EXPECT_NE(second.text.find("lr=1e-3,r=2 is done"), std::string::npos) << second.text;
  EXPECT_NE(second.text.find("lr=1e-4,r=4 starts"), std::string::npos) << second.text;
  // As the tutorial says, twice: the pages of the sweep and of the first time lie beside the runs.
  const std::string all = small.run().string() + "/*";
  CommandOutput compared;
  for (int time = 0; time < 2; ++time) {
    compared = output_of_nibble("compare --json " + all + " --out " + (small.run() / "compare.html").string());
    ASSERT_EQ(compared.code, 0);
  }
  EXPECT_EQ(json::parse(compared.text)["runs"].size(), 4U);
  EXPECT_TRUE(json::parse(compared.text)["recipe_differences"].contains("optimizer.lr"));
  const std::string lines = output_of_nibble("compare " + all).text;
  EXPECT_NE(lines.find("\nlr=1e-3,r=2  2 "), std::string::npos) << "a line for each of many runs: " << lines;
}

TEST(AroundARun, SweepSaysWhichRunFailedAndEndsWithItsCode) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const SmallRecipe small(model);
  const CommandOutput output = output_of_nibble("sweep " + small.recipe_file().string() + " path=x lr=1,2 2>&1");
  EXPECT_EQ(output.code, 2) << output.text;  // model.path or adapter.path?
  const CommandOutput gone =
      output_of_nibble("sweep " + small.recipe_file().string() + " data.train=gone.jsonl lr=1,2 2>&1");
  EXPECT_EQ(gone.code, 3) << gone.text;
  EXPECT_NE(gone.text.find("lr=1 failed: error: "), std::string::npos) << gone.text;
}

TEST(AroundARun, ReportWritesPlotsAsPictures) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const SmallRecipe small(model);
  ASSERT_EQ(output_of_nibble("train " + small.recipe_file().string() + " 2>/dev/null").code, 0);
  const fs::path plots = small.directory / "plots";
  const CommandOutput output = output_of_nibble("report " + small.run().string() + " --plots " + plots.string());
  ASSERT_EQ(output.code, 0);
  EXPECT_TRUE(test::read_bytes(plots / "loss.svg").starts_with("<svg"));
  EXPECT_EQ(output_of_nibble("report " + plots.string() + " 2>/dev/null").code, 3);
}

TEST(AroundARun, ChatSwitchesTheAdapterOffAndOn) {
  const std::filesystem::path model = test::data_path("stories-llama");
  // With the last, weights of the base are others as well: it is opened again.
  for (const std::string more : {"", " adapter.modules_to_save='[\"lm_head\"]'"}) {
    const SmallRecipe small(model);
    const std::string steps = " optimizer.lr=0.05 train.steps=12" + more;
    ASSERT_EQ(output_of_nibble("train " + small.recipe_file().string() + steps + " 2>/dev/null").code, 0);
    test::write_bytes(small.directory / "lines",
                      "Hi\n/reset\n/adapter off\n/adapter ?\nHi\n/reset\n/adapter on\nHi\n/addapter\n/quit\nHi\n");
    const std::string chat = "chat --template plain --max-new-tokens 12 --model " + model.string() + " < " +
                             (small.directory / "lines").string();
    const std::string adapter = " --adapter " + (small.run() / "adapter").string();
    const CommandOutput output = output_of_nibble(chat + adapter + " 2>&1");
    ASSERT_EQ(output.code, 0) << output.text;
    EXPECT_NE(output.text.find("is off\n/adapter takes on or off, not ?; alone it changes"), std::string::npos);
    EXPECT_NE(output.text.find("did you mean /adapter?"), std::string::npos);
    const CommandOutput only = output_of_nibble(chat + adapter + " 2>/dev/null"),
                        base = output_of_nibble(chat + " 2>/dev/null");
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
  const CommandOutput output = output_of_nibble("eval --format choices --json --model " + model.string() + " --data " +
                                                (directory / "q.jsonl").string());
  ASSERT_EQ(output.code, 0);
  EXPECT_EQ(json::parse(output.text)["accuracy"], 1.0);
}

TEST(AroundARun, PreviewReportsSharesLengthsAndWhatIsCut) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const SmallRecipe small(model);
  const CommandOutput output =
      output_of_nibble("preview --json " + small.recipe_file().string() + " data.max_length=12 data.truncate=cut");
  ASSERT_EQ(output.code, 0);
  const json found = json::parse(output.text);
  EXPECT_GT(found["truncated"], 0);
  EXPECT_GT(found["trained_share"], 0.2);
  EXPECT_LT(found["trained_share"], 1.0);
  const CommandOutput shown = output_of_nibble("preview " + small.recipe_file().string());
  for (const char* part :
       {"The dog[[ ran home ", "trained; the longest sample has", "--- lengths in tokens", "steps; the first has"}) {
    EXPECT_NE(shown.text.find(part), std::string::npos) << part << " in " << shown.text;
  }
}

TEST(AroundARun, PreviewWarnsOfAnswersThatDoNotEnd) {
  const std::filesystem::path model = test::data_path("stories-llama");
  const SmallRecipe small(model);
  test::write_bytes(small.directory / "d.jsonl",
                    "{\"input_ids\": [1, 403, 407, 261]}\n{\"input_ids\": [1, 403, 407, 2]}\n");
  const CommandOutput output = output_of_nibble("preview " + small.recipe_file().string() +
                                                " data.eval_fraction=null train.eval_every=null 2>&1");
  ASSERT_EQ(output.code, 0) << output.text;
  EXPECT_NE(output.text.find("warning: 1 sample trains no token that ends a text"), std::string::npos) << output.text;
}

TEST(AroundARun, DoctorLooksAtTheMachine) {
  const CommandOutput output = output_of_nibble("doctor --json --dir /tmp");
  ASSERT_EQ(output.code, 0);
  std::map<std::string, std::string> findings;
  const json parsed = json::parse(output.text);
  for (const json& finding : parsed["findings"]) findings[finding["name"]] = finding["value"];
  for (const char* name : {"cpu", "cores", "numa", "memory", "disk", "mpi", "arithmetic", "memory speed"}) {
    EXPECT_FALSE(findings[name].empty()) << name;
  }
  if (findings["cpu"].find("kernels for baseline") != std::string::npos) return;
  setenv("NIBBLE_ISA", "baseline", 1);
  const CommandOutput capped = output_of_nibble("doctor --quick --dir /tmp");
  unsetenv("NIBBLE_ISA");
  EXPECT_NE(capped.text.find("-> NIBBLE_ISA keeps nibble from this CPU's "), std::string::npos) << capped.text;
}

}  // namespace
}  // namespace nibble
