// Fields of the wrong type, in every place of the records of every format: one line with file, line, reason and remedy.

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/data/records/format.h"
#include "nibble/tests/core/data/byte_encoder.h"

namespace nibble {
namespace {

using namespace test;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct Record {
  DataFormat format;
  std::string text;
};

const std::vector<Record> kRecords = {
    {DataFormat::preference, R"({"prompt": "a", "chosen": "b", "rejected": "c", "margin": 1})"},
    {DataFormat::preference, R"({"chosen": "ab", "rejected": "ac"})"},
    {DataFormat::preference, R"({"prompt_ids": [1], "chosen_ids": [2, 3], "rejected_ids": [4]})"},
    {DataFormat::preference, R"({"prompt": [{"role": "user", "content": "a"}],
        "chosen": [{"role": "assistant", "content": "b", "tool_calls": []}],
        "rejected": {"role": "assistant", "content": [{"type": "text", "text": "c"}]}})"},
    {DataFormat::preference, R"({"conversations": [{"from": "human", "value": "a"}], "system": "s", "tools": [],
        "documents": "[]", "chosen": {"from": "gpt", "value": "b"}, "rejected": {"from": "gpt", "value": "c"}})"},
    {DataFormat::preference, R"({"instruction": "a", "input": "b", "history": [["c", "d"]],
        "chosen": {"role": "assistant", "content": "e"}, "rejected": {"role": "assistant", "content": "f"}})"},
    {DataFormat::preference, R"({"input": {"messages": [{"role": "user", "content": "a"}]},
        "preferred_output": [{"role": "assistant", "content": "b"}],
        "non_preferred_output": [{"role": "assistant", "content": "c"}]})"},
    {DataFormat::unpaired, R"({"prompt": "a", "completion": "b", "label": true})"},
    {DataFormat::unpaired, R"({"prompt_ids": [1], "completion_ids": [2], "label": 0})"},
    {DataFormat::unpaired, R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b",
        "weight": 1}], "kto_tag": "True"})"},
    {DataFormat::unpaired, R"({"instruction": "a", "output": "b", "label": false})"},
    {DataFormat::labeled, R"({"text": "a", "label": 1})"},
    {DataFormat::labeled, R"({"messages": [{"role": "user", "content": "a"}], "label": [0, 1.5]})"},
    {DataFormat::labeled, R"({"input_ids": [1, 2], "label": 1})"},
    {DataFormat::prompts, R"({"prompt": "a"})"},
    {DataFormat::prompts, R"({"prompt": [{"role": "user", "content": "a"}], "system": "s"})"},
    {DataFormat::prompts, R"({"prompt_ids": [1, 2]})"},
    {DataFormat::rollouts, R"({"prompt_ids": [1], "completion_ids": [2, 3], "reward": 1, "old_logprobs": [-1, -2],
        "truncated": false})"},
    {DataFormat::rollouts, R"({"prompt_ids": [1], "completion_ids": [2], "score": 1})"},
};

Encoder chat() {
  Encoder encoder = byte_encoder();
  encoder.render_text = [render = encoder.render_chat](Conversation conversation, bool) {
    return render(conversation).text;
  };
  return encoder;
}

/// Why the record is refused; "" where it is taken.
std::string refusal(const json& record, DataFormat format) {
  DataOptions options;
  options.format = format;
  if (record.contains("history")) options.chat_template = "any";
  try {
    const Encoder encoder = chat();
    encode_record(render_record("d.jsonl", {record.dump(), 7, 1}, format, options, encoder), encoder);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(WrongTypes, EndInOneLineWithPlaceReasonAndRemedy) {
  size_t refused = 0;
  for (const auto& [format, text] : kRecords) {
    const json record = json::parse(text);
    ASSERT_EQ(refusal(record, format), "") << text;
    std::vector<json::json_pointer> places;
    for (const auto& [name, value] : record.items()) places.push_back(json::json_pointer() / name);
    const json leaves = record.flatten();
    for (const auto& [place, value] : leaves.items()) places.emplace_back(place);
    for (const json::json_pointer& place : places) {
      for (const char* wrong : {R"({"a": 1})", R"(["x"])", "[[]]", "-5", "1.5", "true", "1e300"}) {
        json bad = record;
        bad[place] = json::parse(wrong);
        const std::string output = refusal(bad, format);
        if (output.empty()) continue;  // a number may be what is asked for
        ++refused;
        EXPECT_THAT(output, AllOf(StartsWith("d.jsonl:7:1: "), HasSubstr("; "), Not(HasSubstr("\n")))) << bad;
      }
      json bad = record;
      bad[place] = {{"a", 1}};
      EXPECT_NE(refusal(bad, format), "") << bad;
    }
  }
  EXPECT_GT(refused, 700u);
}

}  // namespace
}  // namespace nibble
