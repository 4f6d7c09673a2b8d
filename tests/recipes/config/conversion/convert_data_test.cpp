// What configurations of other tools say of their data, and what of these data is trained.

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "nibble/recipes/config/conversion/convert_recipe.h"
#include "nibble/recipes/config/recipe.h"

namespace nibble {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

struct ConvertedData {
  explicit ConvertedData(const std::string& text)
      : notes(convert_recipe(text, "theirs.yml").notes), data(json::parse(convert_recipe(text, "theirs.yml").text)) {
    parse_recipe(data.dump(), "ours.json", {});  // accepts it
    data = data["data"];
  }
  std::vector<std::string> notes;
  json data;
};

const std::string kPackedAxolotl =
    "base_model: m\noutput_dir: o\nsequence_len: 64\nnum_epochs: 1\nmicro_batch_size: 1\n"
    "gradient_accumulation_steps: 1\nsample_packing: true\n";

TEST(ConvertData, FilesThatAxolotlReadsInSeveralWaysAreNamed) {
  for (const bool is_first : {true, false}) {
    const std::string chat = "  - {path: chat.jsonl, type: chat_template}\n";
    const std::string completion = "  - {path: pc.jsonl, type: completion, field: completion}\n";
    const ConvertedData mixed(kPackedAxolotl + "datasets:\n" + (is_first ? completion + chat : chat + completion));
    EXPECT_FALSE(mixed.data.contains("format")) << mixed.data;
    EXPECT_FALSE(mixed.data.contains("fields")) << mixed.data;
    EXPECT_EQ(mixed.data["train"].size(), 2U);
    EXPECT_THAT(mixed.notes, Contains(AllOf(HasSubstr("datasets: a recipe has one data.format and one data.fields"),
                                            HasSubstr("chat.jsonl (type chat_template)"),
                                            HasSubstr(R"(pc.jsonl (type completion, fields {"text":"completion"}))"))));
  }
}

TEST(ConvertData, FieldsThatFilesCallDifferentlyAreLeftOut) {
  const ConvertedData mixed(kPackedAxolotl + R"(datasets:
  - {path: a.jsonl, type: alpaca, field_output: reply}
  - {path: b.jsonl, type: alpaca}
)");
  EXPECT_EQ(mixed.data["format"], "alpaca");
  EXPECT_FALSE(mixed.data.contains("fields")) << mixed.data;
  EXPECT_THAT(mixed.notes, Contains(AllOf(HasSubstr("one data.fields for"), HasSubstr("a.jsonl (type alpaca, fields "),
                                          HasSubstr("b.jsonl (type alpaca)"))));
}

TEST(ConvertData, WhatAxolotlSaysOfConversationsThatIsSoHereIsNoNote) {
  const ConvertedData both(kPackedAxolotl + R"(datasets:
  - path: a.jsonl
    type: chat_template
    field_messages: conversations
    message_property_mappings: {role: from, content: value}
    split: train
    roles_to_train: [assistant]
    train_on_eos: turn
    chat_template: tokenizer_default
  - {path: b.jsonl, type: chat_template, field_system: rules, message_field_role: role, message_field_content: content}
  - {path: c.jsonl, type: sharegpt, field_system: rules}
)");
  EXPECT_EQ(both.data["format"], "chat");
  EXPECT_THAT(both.notes, Contains(HasSubstr("one data.fields for")));
  EXPECT_THAT(both.notes, Each(Not(HasSubstr("no counterpart"))));
  const ConvertedData other(kPackedAxolotl + R"(datasets:
  - path: a.jsonl
    type: chat_template
    message_property_mappings: {role: speaker, content: value}
    split: test
    roles_to_train: [user]
)");
  for (const char* key : {"message_property_mappings", "split", "roles_to_train"}) {
    EXPECT_THAT(other.notes, Contains(HasSubstr(std::string("datasets.") + key + ": has no counterpart")));
  }
}

TEST(ConvertData, AxolotlsTrainOnInputsIsForAllFiles) {
  const auto datasets = [](const std::string& of_a, const std::string& of_b) {
    return kPackedAxolotl + "datasets:\n  - {path: a.jsonl, type: alpaca" + of_a +
           "}\n  - {path: b.jsonl, type: alpaca" + of_b + "}\n  - {path: c.jsonl, type: alpaca}\n";
  };
  const std::string yes = ", train_on_inputs: true";
  const ConvertedData everywhere(datasets(yes, "") + "train_on_inputs: true\n");
  EXPECT_EQ(everywhere.data["train_on_prompt"], true);
  EXPECT_THAT(everywhere.notes, IsEmpty());
  const ConvertedData some(datasets(yes, yes));
  EXPECT_FALSE(some.data.contains("train_on_prompt"));
  EXPECT_THAT(some.notes, Contains(HasSubstr("datasets.train_on_inputs: is left out for a.jsonl, b.jsonl: ")));
  const ConvertedData except(datasets(", train_on_inputs: false", "") + "train_on_inputs: true\n");
  EXPECT_EQ(except.data["train_on_prompt"], true);
  EXPECT_THAT(except.notes, Contains(HasSubstr("datasets.train_on_inputs: is left out for a.jsonl: ")));
  const ConvertedData one(kPackedAxolotl + "datasets:\n  - {path: a.jsonl, type: alpaca" + yes + "}\n");
  EXPECT_EQ(one.data["train_on_prompt"], true);
  EXPECT_THAT(one.notes, Contains(HasSubstr("datasets.train_on_inputs: is taken for data.train_on_prompt")));
}

TEST(ConvertData, FilesOfAxolotlsOtherLists) {
  const ConvertedData converted(kPackedAxolotl + R"(datasets:
  - {path: json, data_files: [a.jsonl, b.jsonl], type: alpaca}
test_datasets:
  - {path: c.jsonl, type: alpaca, split: train}
)");
  EXPECT_EQ(converted.data["train"], json::parse(R"(["a.jsonl", "b.jsonl"])"));
  EXPECT_EQ(converted.data["eval"], "c.jsonl");
  EXPECT_EQ(converted.data["format"], "alpaca");
  EXPECT_THAT(converted.notes, IsEmpty());
  const ConvertedData pretraining(kPackedAxolotl +
                                  "max_steps: 9\npretraining_dataset:\n  - {path: me/texts, type: pretrain, "
                                  "text_column: body, data_files: d.jsonl}\n");
  EXPECT_EQ(pretraining.data["train"], "d.jsonl");
  EXPECT_EQ(pretraining.data["format"], "text");
  EXPECT_EQ(pretraining.data["fields"], json::parse(R"({"text": "body"})"));
  EXPECT_THAT(pretraining.notes, Contains(HasSubstr("pretraining_dataset.data_files: are taken for files of this")));
  const ConvertedData segments(kPackedAxolotl + "datasets:\n  - {path: a.jsonl, type: input_output}\n");
  EXPECT_THAT(segments.notes, Contains(HasSubstr("datasets.type: \"input_output\" has no counterpart")));
}

TEST(ConvertData, TrlTrainsAllTokensUnlessAKeySaysOtherwise) {
  const auto converted = [](const std::string& keys) {
    return ConvertedData("model_name_or_path: m\ndataset_name: d.jsonl\noutput_dir: o\npacking: true\n" + keys);
  };
  const std::string answers = "assistant_only_loss: true\n", all = "assistant_only_loss: false\n";
  const std::string completion = "completion_only_loss: true\n", whole = "completion_only_loss: false\n";
  const auto unclear = Contains(HasSubstr("data.train_on_prompt: is true, because TRL trains all tokens of"));
  for (const std::string& keys : {std::string(), all, std::string("completion_only_loss: null\n")}) {
    EXPECT_EQ(converted(keys).data["train_on_prompt"], true) << keys;
    EXPECT_THAT(converted(keys).notes, unclear) << keys;
  }
  for (const std::string& keys :
       {answers, completion, answers + whole, all + completion, answers + completion, whole}) {
    EXPECT_EQ(converted(keys).data["train_on_prompt"], keys == whole) << keys;
    EXPECT_THAT(converted(keys).notes, AllOf(Not(unclear), Each(Not(HasSubstr("_only_loss"))))) << keys;
  }
  EXPECT_THAT(converted("assistant_only_loss: maybe\n").notes,
              Contains(HasSubstr("assistant_only_loss: has no counterpart")));
}

TEST(ConvertData, LlamaFactoryPacksWhereEitherKeySaysSo) {
  const auto converted = [](const std::string& keys) {
    return ConvertedData("model_name_or_path: m\ncutoff_len: 64\noutput_dir: o\ndataset: a\n" + keys);
  };
  const std::string neat = "neat_packing: true\n", apart = "as with neat_packing";
  for (const std::string& keys :
       {neat, neat + "packing: false\n", "packing: false\n" + neat, neat + "packing: true\n"}) {
    EXPECT_EQ(converted(keys).data["pack"], true) << keys;
    EXPECT_THAT(converted(keys).notes, Each(Not(HasSubstr("packing")))) << keys;
  }
  EXPECT_EQ(converted("packing: true\n").data["pack"], true);
  EXPECT_THAT(converted("packing: true\n").notes, Contains(HasSubstr(apart)));
  EXPECT_EQ(converted("neat_packing: false\n").data["pack"], false);
  EXPECT_EQ(converted("").data["pack"], false);
  EXPECT_EQ(converted("stage: pt\n").data["pack"], true);
  EXPECT_THAT(converted("stage: pt\n").notes, Contains(HasSubstr(", packing=true, ")));
  EXPECT_EQ(converted("stage: pt\npacking: false\n").data["pack"], false);
}

TEST(ConvertData, LlamaFactorysTrainOnPromptHasTheSameName) {
  const std::string theirs = "model_name_or_path: m\nfinetuning_type: full\noutput_dir: o\ndataset: a\n";
  const ConvertedData converted(theirs + "train_on_prompt: true\n");
  EXPECT_EQ(converted.data["train_on_prompt"], true);
  EXPECT_THAT(converted.notes, Each(Not(HasSubstr("train_on_prompt"))));
  EXPECT_FALSE(ConvertedData(theirs).data.contains("train_on_prompt"));
}

TEST(ConvertData, LlamaFactorysNamesOfEvaluationDataAreFilesToo) {
  const ConvertedData converted("model_name_or_path: m\nstage: sft\noutput_dir: o\ndataset: a\neval_dataset: b , c,\n");
  EXPECT_EQ(converted.data["eval"], json::parse(R"(["data/b.json", "data/c.json"])"));
  EXPECT_THAT(converted.notes, Contains(HasSubstr("eval_dataset: \"c\" is taken for the file data/c.json")));
}

}  // namespace
}  // namespace nibble
