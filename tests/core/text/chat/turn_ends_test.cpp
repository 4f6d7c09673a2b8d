#include "nibble/core/text/chat/turn_ends.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "nibble/core/io/json/json_file.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using nlohmann::json;

/// A model's directory whose tokenizer has <s> 0, </s> 1 and <|im_end|> 2.
struct Model {
  explicit Model(const json& config) { write_json_file(directory / "config.json", config); }
  void put_tokenizer(const json& settings) const {
    const auto special = [](int id, const char* text) {
      return json{{"id", id}, {"content", text}, {"special", true}};
    };
    const json vocabulary = {{"<s>", 0}, {"</s>", 1}, {"<|im_end|>", 2}, {"a", 3}, {"b", 4}};
    write_json_file(directory / "tokenizer.json",
                    {{"version", "1.0"},
                     {"added_tokens", {special(0, "<s>"), special(1, "</s>"), special(2, "<|im_end|>")}},
                     {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}}}});
    write_json_file(directory / "tokenizer_config.json", settings);
  }
  json completed(const char* file) const {
    complete_end_ids(directory.path());
    return std::filesystem::exists(directory / file) ? read_json_file(directory / file) : json();
  }

  test::TemporaryDirectory directory;
};

const json kConfig = {{"bos_token_id", 0}, {"eos_token_id", 1}, {"hidden_size", 8}};
constexpr const char* kChatml = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|im_end|>\n{% endfor %}";

TEST(TurnEnds, TheTokenizersEosGoesBeforeThoseOfTheModel) {
  const Model model(kConfig);
  model.put_tokenizer({{"eos_token", "<|im_end|>"}});
  EXPECT_EQ(model.completed("config.json"), (json{{"bos_token_id", 0}, {"eos_token_id", 2}, {"hidden_size", 8}}));
  EXPECT_EQ(model.completed("generation_config.json"), (json{{"bos_token_id", 0}, {"eos_token_id", {2, 1}}}));
}

TEST(TurnEnds, WhatTheTemplateWritesBehindAnAnswerIsOneToo) {
  const Model model(kConfig);
  model.put_tokenizer({{"eos_token", "</s>"}, {"chat_template", kChatml}});
  write_json_file(model.directory / "generation_config.json", {{"eos_token_id", 1}, {"top_k", 5}});
  EXPECT_EQ(model.completed("config.json"), kConfig) << "the EOS is what it was";
  EXPECT_EQ(model.completed("generation_config.json"), (json{{"eos_token_id", {2, 1}}, {"top_k", 5}}));
}

TEST(TurnEnds, AModelThatNamesThemStaysAsItIs) {
  const Model model(kConfig);
  EXPECT_TRUE(model.completed("generation_config.json").is_null()) << "no tokenizer";
  model.put_tokenizer(
      {{"eos_token", "</s>"}, {"chat_template", "{% for m in messages %}{{ m.content }}\n{% endfor %}"}});
  EXPECT_TRUE(model.completed("generation_config.json").is_null());
  EXPECT_EQ(model.completed("config.json"), kConfig);
  const json both = {{"eos_token_id", {1, 2}}};
  write_json_file(model.directory / "generation_config.json", both);
  model.put_tokenizer({{"eos_token", "<|im_end|>"}, {"chat_template", kChatml}});
  EXPECT_EQ(model.completed("generation_config.json"), both);
}

}  // namespace
}  // namespace nibble
