// nibble sweep: what it tells while it runs.

#include <gmock/gmock.h>

#include "nibble/tests/cli/small_model.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

class Sweep : public test::SmallModel {};

TEST_F(Sweep, TellsTheTimeLeftWhenARunHasEnded) {
  test::write_bytes(root_ / "d.jsonl", R"({"prompt": "What?", "completion": " That."})"
                                       "\n");
  test::write_bytes(root_ / "r.yaml",
                    "model: {path: me/small}\ndata: {train: d.jsonl, max_length: 64}\ntrain: {steps: 1}\n"
                    "output: {dir: runs}\n");
  const Said output = run("sweep r.yaml lr=1e-3,1e-4");
  ASSERT_EQ(output.code, 0) << output.text;
  EXPECT_THAT(output.text, HasSubstr("1/2 lr=1e-3 ended; left "));
  EXPECT_THAT(output.text, HasSubstr("2/2 lr=1e-4 ended\n"));
}

TEST_F(Sweep, ThreadsAreSharedOutByJobs) {
  test::write_bytes(root_ / "r.yaml",
                    "model: {path: me/small}\ndata: {train: d.jsonl}\ntrain: {steps: 1}\noutput: {dir: runs}\n");
  const Said output = run("sweep r.yaml train.threads=1,2 --jobs 2");
  EXPECT_EQ(output.code, 2);
  EXPECT_EQ(output.text, "error: train.threads: is set by --jobs; leave out one\n");
}

}  // namespace
}  // namespace nibble
