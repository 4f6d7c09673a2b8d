// What a training writes to samples.jsonl (train.samples).

#include "nibble/tests/assets.h"
#include "nibble/tests/cli/small_model.h"
#include "nibble/tests/cli/word_tokenizer.h"

namespace nibble {
namespace {

class Samples : public test::SmallModel {};

TEST_F(Samples, SamplesOfATrainingEndWhereItsTemplateEndsATurn) {
  const int mark =
      nlohmann::json::parse(run("generate --model me/small --ids 1,2 --max-new-tokens 1 --json").text)["ids"][0];
  ASSERT_GT(mark, 3) << "what the model goes on with behind w1 w2";
  create_directory(root_ / "marks");
  test::write_bytes(root_ / "marks/tokenizer.json", test::word_tokenizer({{mark, "<|im_end|>"}}));
  test::write_bytes(root_ / "d.jsonl",
                    R"({"messages": [{"role": "user", "content": "w1"}, {"role": "assistant", "content": "w2 w3"}]})");
  test::write_bytes(root_ / "t.jinja",
                    "{% for m in messages %}{{ m.content + (' <|im_end|>' if m.role == 'assistant' else ' ') }}"
                    "{% endfor %}");
  test::write_bytes(root_ / "r.json", R"({"model": {"path": "me/small", "tokenizer": "marks"},
    "adapter": {"r": 2}, "data": {"train": "d.jsonl"}, "train": {"steps": 1, "samples": 1},
    "output": {"dir": "run", "force": true}})");
  const auto first_sample = [&](const std::string& more) {
    const CommandOutput trained = run("train r.json" + more);
    EXPECT_EQ(trained.code, 0) << trained.text;
    const std::string lines = test::read_bytes(root_ / "run/samples.jsonl");
    return nlohmann::json::parse(lines.substr(0, lines.find('\n')));
  };
  const nlohmann::json by_file = first_sample(" data.template=t.jinja");
  EXPECT_EQ(by_file["text"], "") << by_file;
  test::write_bytes(root_ / "marks/chat_template.jinja", test::read_bytes(root_ / "t.jinja"));
  EXPECT_EQ(first_sample(""), by_file) << "the tokenizer's own";
}

}  // namespace
}  // namespace nibble
