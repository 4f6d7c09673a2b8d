// nibble sweep: what it tells while it runs.

#include <gmock/gmock.h>

#include "nibble/tests/cli/small_model.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

class Sweep : public test::SmallModel {};

TEST_F(Sweep, ReportsTheTimeLeftWhenARunHasEnded) {
  test::write_bytes(root_ / "d.jsonl", R"({"prompt": "What?", "completion": " That."})"
                                       "\n");
  test::write_bytes(root_ / "r.yaml",
                    "model: {path: me/small}\ndata: {train: d.jsonl, max_length: 64}\ntrain: {steps: 1}\n"
                    "output: {dir: runs}\n");
  const CommandOutput output = run("sweep r.yaml lr=1e-3,1e-4");
  ASSERT_EQ(output.code, 0) << output.text;
  EXPECT_THAT(output.text, HasSubstr("1/2 lr=1e-3 ended; left "));
  EXPECT_THAT(output.text, HasSubstr("2/2 lr=1e-4 ended\n"));
}

TEST_F(Sweep, ThreadsAreSharedOutByJobs) {
  test::write_bytes(root_ / "r.yaml",
                    "model: {path: me/small}\ndata: {train: d.jsonl}\ntrain: {steps: 1}\noutput: {dir: runs}\n");
  const CommandOutput output = run("sweep r.yaml train.threads=1,2 --jobs 2");
  EXPECT_EQ(output.code, 2);
  EXPECT_EQ(output.text, "error: train.threads: is set by --jobs; leave out one\n");
}

TEST_F(Sweep, ADirectoryThatCannotBeMadeHasARemedy) {
  test::write_bytes(root_ / "r.yaml", "model: {path: me/small}\ndata: {train: d.jsonl}\noutput: {dir: /proc/runs}\n");
  const CommandOutput output = run("sweep r.yaml lr=1e-3,1e-4");
  EXPECT_EQ(output.code, 4);
  EXPECT_THAT(output.text, HasSubstr("cannot be made: No such file or directory; check the path"));
}

// The loss of preferences falls with beta alone, and the policy's loss says nothing of its answers.
TEST_F(Sweep, TheBestRunIsByWhatAllRunsShare) {
  test::write_bytes(root_ / "d.jsonl", R"({"prompt": "What?", "chosen": " That.", "rejected": " No."})"
                                       "\n");
  test::write_bytes(root_ / "dpo.yaml",
                    "model: {path: me/small}\nobjective: {type: dpo}\ndata: {train: d.jsonl, max_length: 64}\n"
                    "train: {steps: 3}\noutput: {dir: dpo}\n");
  EXPECT_THAT(run("sweep dpo.yaml lr=1e-3,1e-4").text, HasSubstr("\nbest: dpo/lr=1e-3\n"));
  EXPECT_THAT(run("sweep dpo.yaml beta=0.01,1 output.dir=betas").text,
              HasSubstr("\nbest by accuracy, then margin: betas/beta="));
  EXPECT_THAT(run("sweep dpo.yaml beta=0.01,1 output.dir=betas --json").text, HasSubstr("\"ranked_by\":\"accuracy\""));
  test::write_bytes(
      root_ / "grpo.yaml",
      "model: {path: me/small}\nobjective: {type: grpo}\nrollout: {completions: 2}\n"
      "rewards: [{type: length, max_completion_len: 4, soft_punish_cache: 2}]\n"
      "data: {train: d.jsonl, max_length: 64}\ntrain: {steps: 1, microbatch_size: 2}\noutput: {dir: grpo}\n");
  const CommandOutput rewarded = run("sweep grpo.yaml max_new_tokens=8,1");
  EXPECT_THAT(rewarded.text, HasSubstr("\nbest by reward: grpo/max_new_tokens=1\n"));
  const CommandOutput others =
      run("sweep grpo.yaml max_new_tokens=1 output.dir=others "
          R"('rewards=[{"type":"regex","pattern":"e"}],[{"type":"regex","pattern":"o"}]')");
  EXPECT_THAT(others.text, HasSubstr("\nbest: none, as the runs share no measure; compare them with nibble eval\n"));
}

TEST_F(Sweep, TheMemoryOfOneRunAtATimeHasALimitToo) {
  test::write_bytes(root_ / "d.jsonl", R"({"prompt": "What?", "completion": " That."})"
                                       "\n");
  test::write_bytes(root_ / "r.yaml",
                    "model: {path: me/small}\ndata: {train: d.jsonl, max_length: 64}\ntrain: {steps: 1}\n"
                    "output: {dir: runs}\n");
  EXPECT_EQ(run("sweep r.yaml lr=1e-3,1e-4 --max-memory lots").code, 2);
  const CommandOutput output = run("sweep r.yaml lr=1e-3,1e-4 --max-memory 1KiB");
  EXPECT_EQ(output.code, 4);
  EXPECT_THAT(output.text, HasSubstr("error: --max-memory 1KiB: the largest run needs "));
  EXPECT_FALSE(exists(root_ / "runs"));
}

}  // namespace
}  // namespace nibble
