#include "nibble/recipes/config/conversion/convert_recipe.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/recipes/config/recipe.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using nlohmann::json;
using test::error_of;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

/// What converting gives, which parse_recipe accepts.
struct Converted {
  explicit Converted(const std::string& text)
      : result(convert_recipe(text, "theirs.yml")), root(json::parse(result.text)) {
    parse_recipe(result.text, "ours.json", {});
  }
  ConvertedRecipe result;
  json root;
};

// After examples/llama-3/qlora.yml of Axolotl.
constexpr const char* kAxolotl = R"(
base_model: NousResearch/Meta-Llama-3-8B
load_in_8bit: false
load_in_4bit: true
strict: false
datasets:
  - path: mine.jsonl
    type: alpaca
val_set_size: 0.05
output_dir: ./outputs/qlora-out
adapter: qlora
sequence_len: 4096
sample_packing: true
lora_r: 32
lora_alpha: 16
lora_dropout: 0.05
lora_target_linear: true
gradient_accumulation_steps: 4
micro_batch_size: 2
num_epochs: 4
optimizer: paged_adamw_32bit
lr_scheduler: cosine
learning_rate: 0.0002
bf16: auto
gradient_checkpointing: true
flash_attention: true
warmup_steps: 10
evals_per_epoch: 4
weight_decay: 0.0
)";

TEST(ConvertRecipe, AxolotlsLengthIs512WhereNothingElseIsSaid) {
  const Converted converted(std::string(kAxolotl).replace(std::string(kAxolotl).find("sequence_len: 4096"), 18, ""));
  EXPECT_EQ(converted.root["data"]["max_length"], 512);
  EXPECT_THAT(converted.result.notes, Contains(HasSubstr("Axolotl's defaults: sequence_len=512")));
}

TEST(ConvertRecipe, Axolotl) {
  const Converted converted(kAxolotl);
  EXPECT_EQ(converted.result.tool, "Axolotl");
  EXPECT_EQ(converted.root, json::parse(R"({
    "model": {"quantize": "nf4", "path": "NousResearch/Meta-Llama-3-8B", "compute_dtype": "bf16"},
    "adapter": {"type": "lora", "r": 32, "lora_alpha": 16, "lora_dropout": 0.05, "target_modules": "all-linear"},
    "data": {"train": "mine.jsonl", "format": "alpaca", "truncate": "drop", "eval_fraction": 0.05, "max_length": 4096,
             "pack": true},
    "train": {"accumulate": 4, "microbatch_size": 2, "epochs": 4, "gradient_checkpointing": "block"},
    "optimizer": {"type": "adamw", "schedule": "cosine", "lr": 0.0002, "warmup_steps": 10, "weight_decay": 0.0},
    "output": {"dir": "./outputs/qlora-out"}})"));
  for (const char* note : {"strict: has no counterpart", "flash_attention: has no counterpart",
                           "evals_per_epoch: 4 has no counterpart: give train.eval_every a number of steps, or a time"})
    EXPECT_THAT(converted.result.notes, Contains(HasSubstr(note)));
  EXPECT_THAT(converted.result.notes, Each(Not(HasSubstr("lora_r"))));
}

// After examples/train_lora of LLaMA-Factory.
TEST(ConvertRecipe, LlamaFactory) {
  const Converted converted(R"(
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
stage: sft
do_train: true
finetuning_type: lora
lora_target: q_proj, v_proj
dataset: identity,alpaca_en_demo
template: llama3
cutoff_len: 1024
output_dir: saves/llama3
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
max_steps: 100
)");
  EXPECT_EQ(converted.result.tool, "LLaMA-Factory");
  EXPECT_EQ(converted.root, json::parse(R"({
    "model": {"path": "meta-llama/Meta-Llama-3-8B-Instruct", "compute_dtype": "bf16"},
    "adapter": {"type": "lora", "target_modules": ["q_proj", "v_proj"], "r": 8, "lora_alpha": 16},
    "data": {"train": ["data/identity.json", "data/alpaca_en_demo.json"], "truncate": "cut", "template": "llama3",
             "max_length": 1024, "pack": false},
    "train": {"microbatch_size": 1, "accumulate": 8, "steps": 100},
    "optimizer": {"lr": 0.0001, "schedule": "cosine", "warmup_ratio": 0.1},
    "output": {"dir": "saves/llama3"}})"));
  EXPECT_THAT(converted.result.notes, Each(Not(HasSubstr("template"))));
  EXPECT_THAT(converted.result.notes, Contains(HasSubstr("data/identity.json; look it up")));
  EXPECT_THAT(converted.result.notes, Contains(HasSubstr("LLaMA-Factory's defaults: packing=false, lora_rank=8")));
}

TEST(ConvertRecipe, AlphaMayBeTheOnlyDefaultThatIsWrittenOut) {
  const Converted converted(R"(
model_name_or_path: m
finetuning_type: lora
lora_rank: 8
lora_target: all
dataset: d
cutoff_len: 64
packing: false
output_dir: o
per_device_train_batch_size: 1
learning_rate: 1.0e-4
num_train_epochs: 1
lr_scheduler_type: cosine
)");
  EXPECT_EQ(converted.root["adapter"]["lora_alpha"], 16);
  EXPECT_THAT(converted.result.notes, Contains("written out as LLaMA-Factory's defaults: lora_alpha=2 * lora_rank"));
}

TEST(ConvertRecipe, TrlWritesItsDefaultsOut) {
  const Converted converted(R"({"model_name_or_path": "Qwen/Qwen2-0.5B", "dataset_name": "trl-lib/Capybara",
    "use_peft": true, "output_dir": "out", "eval_strategy": "steps", "lora_task_type": "CAUSAL_LM"})");
  EXPECT_EQ(converted.result.tool, "TRL");
  EXPECT_EQ(converted.root["adapter"], json::parse(R"({"type": "lora", "r": 16, "lora_alpha": 32, "lora_dropout": 0.05,
    "target_modules": ["q_proj", "v_proj"]})"));
  EXPECT_THAT(converted.result.notes, Contains(HasSubstr("lora_target_modules: PEFT's default depends on the type")));
  EXPECT_EQ(converted.root["data"],
            json::parse(R"({"train": "trl-lib/Capybara", "truncate": "cut", "train_on_prompt": true, "max_length": 1024,
                            "pack": false})"));
  EXPECT_EQ(converted.root["optimizer"], json::parse(R"({"lr": 2e-5, "schedule": "linear"})"));
  EXPECT_EQ(converted.root["train"], json::parse(R"({"epochs": 3, "microbatch_size": 8})"));
  EXPECT_THAT(converted.result.notes, Contains(HasSubstr("lora_task_type: has no counterpart")));
}

TEST(ConvertRecipe, AGivenLengthIsNotReplacedByADefault) {
  const Converted converted(R"({"model_name_or_path": "m", "dataset_name": "d.jsonl", "max_seq_length": 256,
    "output_dir": "o"})");
  EXPECT_EQ(converted.root["data"]["max_length"], 256);
  EXPECT_THAT(converted.result.notes, Each(Not(HasSubstr("max_length=1024"))));
  const Converted unlimited(R"({"model_name_or_path": "m", "dataset_name": "d.jsonl", "max_length": null,
    "output_dir": "o"})");
  EXPECT_EQ(unlimited.root["data"]["max_length"], 1024);
  EXPECT_THAT(unlimited.result.notes, Contains(HasSubstr("max_length: null, no limit, has no counterpart")));
}

TEST(ConvertRecipe, TheLastLearningRateIsAShareOfTheFirst) {
  const std::string trl =
      "model_name_or_path: m\ndataset_name: d.jsonl\noutput_dir: o\npacking: true\n"
      "lr_scheduler_type: cosine_with_min_lr\n";
  const Converted share(trl + "learning_rate: 2.0e-4\nlr_scheduler_kwargs: {min_lr_rate: 0.1, num_cycles: 0.5}\n");
  EXPECT_EQ(share.root["optimizer"]["schedule"], "cosine");
  EXPECT_DOUBLE_EQ(share.root["optimizer"]["min_lr"], 2e-5);
  EXPECT_THAT(share.result.notes, Contains(HasSubstr("lr_scheduler_kwargs.num_cycles: 0.5 has no counterpart")));
  EXPECT_THAT(share.result.notes, Each(Not(HasSubstr("min_lr"))));
  const Converted of_default(trl + "lr_scheduler_kwargs: {min_lr_rate: 0.5}\n");
  EXPECT_DOUBLE_EQ(of_default.root["optimizer"]["min_lr"], 1e-5);
  EXPECT_EQ(Converted(trl + "lr_scheduler_kwargs: {min_lr: 1.0e-6}\n").root["optimizer"]["min_lr"], 1e-6);
  const Converted wrong(trl + "lr_scheduler_kwargs: {min_lr_rate: 2}\n");
  EXPECT_FALSE(wrong.root["optimizer"].contains("min_lr"));
  EXPECT_THAT(wrong.result.notes, Contains(HasSubstr("lr_scheduler_kwargs.min_lr_rate: 2 has no counterpart")));
  const std::string axolotl =
      "base_model: m\ndatasets: d.jsonl\noutput_dir: o\nlearning_rate: 2.0e-4\n"
      "cosine_min_lr_ratio: 0.1\n";
  EXPECT_DOUBLE_EQ(Converted(axolotl).root["optimizer"]["min_lr"], 2e-5);
  const Converted linear(axolotl + "lr_scheduler: linear\n");
  EXPECT_FALSE(linear.root["optimizer"].contains("min_lr"));
  EXPECT_THAT(linear.result.notes, Contains(HasSubstr("cosine_min_lr_ratio: is left out")));
}

TEST(ConvertRecipe, EvaluationsOfNothingAreLeftOutAndNamed) {
  const std::string theirs = R"({"model_name_or_path": "m", "dataset_name": "d.jsonl", "output_dir": "o",
    "eval_strategy": "steps", "eval_steps": 50, "early_stopping_patience": 3, "load_best_model_at_end": true)";
  const Converted nothing(theirs + "}"), share(theirs + R"(, "val_size": 0.1, "stage": "sft"})");
  for (const auto& [section, key] :
       {std::pair("train", "eval_every"), {"train", "early_stop"}, {"output", "keep_best"}}) {
    EXPECT_FALSE(nothing.root[section].contains(key)) << key;
    EXPECT_TRUE(share.root[section].contains(key)) << key;
    EXPECT_THAT(nothing.result.notes, Contains(HasSubstr(std::string(section) + "." + key + ": is left out")));
  }
  const Converted axolotl(std::string(kAxolotl) + "early_stopping_patience: 3\n");
  EXPECT_FALSE(axolotl.root["train"].contains("early_stop"));
  EXPECT_THAT(axolotl.result.notes, Contains(HasSubstr("train.early_stop: is left out, nothing is evaluated")));
}

TEST(ConvertRecipe, NumbersMayBeText) {
  const std::string theirs = "model_name_or_path: m\ndataset_name: d.jsonl\noutput_dir: o\n";
  const Converted text(theirs + "learning_rate: \"1e-4\"\n");
  EXPECT_EQ(text.root["optimizer"]["lr"], 1e-4);
  EXPECT_THAT(text.result.notes, Each(Not(HasSubstr("learning_rate"))));
}

TEST(ConvertRecipe, WhatIsNotTakenFallsToTheToolsDefaultOrIsNamed) {
  const Converted trl(R"({"model_name_or_path": "m", "dataset_name": "d.jsonl", "output_dir": "o",
    "learning_rate": "fast", "lr_scheduler_type": "inverse_sqrt", "optim": "adafactor"})");
  EXPECT_EQ(trl.root["optimizer"], json::parse(R"({"lr": 2e-5, "schedule": "linear"})"));
  EXPECT_THAT(trl.result.notes, Contains("optimizer.type: stays \"adamw\""));
  EXPECT_THAT(trl.result.notes, Contains(HasSubstr("TRL's defaults: num_train_epochs=3, per_device_train_batch_size=8, "
                                                   "lr_scheduler_type=\"linear\"")));
}

TEST(ConvertRecipe, NoSavesAreNone) {
  const std::string theirs = "model_name_or_path: m\ndataset_name: d.jsonl\noutput_dir: o\nsave_strategy: ";
  EXPECT_EQ(Converted(theirs + "\"no\"\nsave_steps: 50\n").root["train"]["save_every"], 0);
  EXPECT_EQ(Converted(theirs + "steps\nsave_steps: 50\n").root["train"]["save_every"], 50);
}

TEST(ConvertRecipe, NoEvaluationsAreNone) {
  for (const std::string key : {"eval_strategy", "evaluation_strategy"}) {
    const std::string theirs = "model_name_or_path: m\nstage: sft\ndataset: d\noutput_dir: o\nval_size: 0.1\n" + key;
    EXPECT_FALSE(Converted(theirs + ": \"no\"\neval_steps: 50\n").root["train"].contains("eval_every")) << key;
    EXPECT_EQ(Converted(theirs + ": steps\neval_steps: 50\n").root["train"]["eval_every"], 50) << key;
  }
}

TEST(ConvertRecipe, LoraPlusAndNoiseOnEmbeddingsAreTakenOver) {
  const std::string axolotl = "base_model: m\ndatasets: d.jsonl\noutput_dir: o\nweight_decay: 0.1\n";
  const std::string factory = "model_name_or_path: m\nstage: sft\ndataset: d\noutput_dir: o\nweight_decay: 0.1\n";
  const std::string both = "loraplus_lr_ratio: 16\nloraplus_lr_embedding: 1e-6\nneftune_noise_alpha: 5\n";
  for (const std::string& theirs : {axolotl + "adapter: lora\n" + both, factory + both}) {
    const Converted converted(theirs);
    EXPECT_EQ(converted.root["optimizer"]["loraplus_lr_ratio"], 16);
    EXPECT_EQ(converted.root["train"]["neftune_noise_alpha"], 5);
    EXPECT_THAT(converted.result.notes, Each(Not(HasSubstr("counterpart"))));
    const bool decays = theirs.starts_with("model");  // Axolotl hands PEFT's optimizer no decay
    EXPECT_EQ(converted.root["optimizer"].contains("weight_decay"), decays);
    EXPECT_EQ(testing::Value(converted.result.notes, Contains(HasSubstr("weight_decay: is left out"))), !decays);
  }
  EXPECT_EQ(Converted(axolotl + "adapter: lora\n").root["optimizer"]["weight_decay"], 0.1);
  EXPECT_EQ(Converted(axolotl + "noisy_embedding_alpha: 5\n").root["train"]["neftune_noise_alpha"], 5);
  const Converted full(axolotl + "loraplus_lr_ratio: 16\n");
  EXPECT_FALSE(full.root["optimizer"].contains("loraplus_lr_ratio"));
  EXPECT_THAT(full.result.notes, Contains(HasSubstr("loraplus_lr_ratio: there is no adapter")));
  const Converted other(axolotl + "adapter: lora\nloraplus_lr_embedding: 2e-6\n");
  EXPECT_THAT(other.result.notes, Contains(HasSubstr("loraplus_lr_embedding: 2e-06 has no counterpart: it is 1e-6")));
}

TEST(ConvertRecipe, FullRunsDecayNeitherNormsNorBiases) {
  // Transformers' Trainer decays neither norms nor biases.
  const std::string full = "model_name_or_path: m\nfinetuning_type: full\ndataset: d\noutput_dir: o\n";
  const Converted decayed(full + "weight_decay: 0.1\n");
  EXPECT_EQ(decayed.root["optimizer"]["no_decay"], json({"norm", "ln_", "bias"}));
  EXPECT_THAT(decayed.result.notes, Contains(HasSubstr("no decay of norms and biases")));
  EXPECT_FALSE(Converted(full).root["optimizer"].contains("no_decay"));
}

TEST(ConvertRecipe, OtherWaysToTrainSomeWeightsAreNamedWithWhatIsTrained) {
  const Converted freeze("model_name_or_path: m\nfinetuning_type: freeze\ndataset: d\noutput_dir: o\n");
  EXPECT_FALSE(freeze.root.contains("adapter"));
  EXPECT_THAT(freeze.result.notes, Contains(HasSubstr("\"freeze\" has no counterpart: the recipe trains all weights")));
}

TEST(ConvertRecipe, WhatHasNoCounterpartIsLeftOutAndNamed) {
  const Converted converted(R"(
base_model: m
adapter: lora
load_in_8bit: true
optimizer: lion
learning_rate: fast
datasets:
  - path: d.jsonl
    type: {field_system: s}
    split: test
    field_messages: conversation
val_set_size: 100
output_dir: o
save_strategy: epoch
)");
  EXPECT_FALSE(converted.root.contains("optimizer"));
  EXPECT_EQ(converted.root["data"]["fields"], json::parse(R"({"messages": "conversation"})"));
  for (const char* note :
       {"load_in_8bit: has no counterpart", "optimizer: \"lion\" has no counterpart: optimizer.type ",
        "learning_rate: \"fast\" has no counterpart: optimizer.lr ", "optimizer.lr: stays 0.0002",
        "datasets.type: has no counterpart", "datasets.split: has no counterpart",
        "val_set_size: a number of samples has no counterpart",
        "save_strategy: \"epoch\" has no counterpart: give train.save_every a number of steps, or a time"}) {
    EXPECT_THAT(converted.result.notes, Contains(HasSubstr(note)));
  }
}

TEST(ConvertRecipe, LongerSamplesAndOtherTemplatesAreTreatedAsTheToolTreatsThem) {
  const std::string axolotl = "base_model: m\ndatasets: d.jsonl\noutput_dir: o\nexcess_length_strategy: ";
  EXPECT_EQ(Converted(axolotl + "truncate").root["data"]["truncate"], "cut");
  EXPECT_EQ(Converted(axolotl + "raise").root["data"]["truncate"], "error");
  const Converted mistral("model_name_or_path: m\nstage: sft\ndataset: d\noutput_dir: o\ntemplate: mistral\n");
  EXPECT_FALSE(mistral.root["data"].contains("template"));
  EXPECT_THAT(mistral.result.notes, Contains(HasSubstr("template: \"mistral\" is not taken over")));
}

TEST(ConvertRecipe, AxolotlsTemplateIsForConversations) {
  const std::string chat = "base_model: m\noutput_dir: o\ndatasets:\n  - {path: d.jsonl, type: chat_template}\n";
  const std::string alpaca = "base_model: m\noutput_dir: o\ndatasets:\n  - {path: d.jsonl, type: alpaca}\n";
  EXPECT_EQ(Converted(chat + "chat_template: chatml\n").root["data"]["template"], "chatml");
  const Converted instructions(alpaca + "chat_template: chatml\n");
  EXPECT_FALSE(instructions.root["data"].contains("template"));
  EXPECT_THAT(instructions.result.notes, Contains(HasSubstr("chat_template: is left out: Axolotl shows only conv")));
  const Converted own(chat + "chat_template: tokenizer_default\n");
  EXPECT_FALSE(own.root["data"].contains("template"));
  EXPECT_THAT(own.result.notes, Each(Not(HasSubstr("chat_template"))));
  const Converted file(chat + "chat_template: jinja\nchat_template_jinja: mine.jinja\n");
  EXPECT_EQ(file.root["data"]["template"], "mine.jinja");
  EXPECT_THAT(file.result.notes, Each(Not(HasSubstr("chat_template"))));
  const Converted unknown(chat + "chat_template: exaone\n");
  EXPECT_FALSE(unknown.root["data"].contains("template"));
  EXPECT_THAT(unknown.result.notes, Contains(HasSubstr("chat_template: \"exaone\" is not taken over")));
}

TEST(ConvertRecipe, WarmingUpIsTransformers) {
  const auto optimizer = [](const std::string& keys) {
    return Converted("model_name_or_path: m\ndataset_name: d.jsonl\noutput_dir: o\n" + keys).root["optimizer"];
  };
  const std::string constant = "warmup_ratio: 0.03\nlr_scheduler_type: constant";
  EXPECT_FALSE(optimizer(constant + "\n").contains("warmup_ratio"));
  EXPECT_EQ(optimizer(constant + "_with_warmup\n")["warmup_ratio"], 0.03);
  EXPECT_EQ(optimizer("warmup_steps: 0.1\n")["warmup_ratio"], 0.1);
  const json both = optimizer("warmup_ratio: 0.1\nwarmup_steps: 5\n");
  EXPECT_EQ(both["warmup_steps"], 5);
  EXPECT_FALSE(both.contains("warmup_ratio"));
}

TEST(ConvertRecipe, KeysUnderOtherNamesAreTakenOver) {
  const Converted axolotl(R"(
base_model: m
adapter: lora
datasets: d.jsonl
output_dir: o
adam_beta2: 0.95
curriculum_sampling: true
lora_target_modules: [q_proj]
peft_layers_to_transform: [0, 1]
peft_init_lora_weights: gaussian
optimizer: paged_adamw
)");
  EXPECT_EQ(axolotl.root["optimizer"]["betas"], json::parse("[0.9, 0.95]"));
  EXPECT_EQ(axolotl.root["optimizer"]["type"], "adamw");
  EXPECT_EQ(axolotl.root["data"]["shuffle"], false);
  EXPECT_EQ(axolotl.root["adapter"]["layers_to_transform"], json::parse("[0, 1]"));
  EXPECT_EQ(axolotl.root["adapter"]["init_lora_weights"], "gaussian");
  const Converted factory(R"(
model_name_or_path: m
stage: sft
dataset: d
output_dir: o
quantization_bit: 4
quantization_type: fp4
double_quantization: false
lora_target: q_proj,,v_proj
additional_target: embed_tokens, lm_head
pissa_init: true
pissa_iter: 4
pure_bf16: true
disable_gradient_checkpointing: true
moe_aux_loss_coef: 0.01
)");
  EXPECT_EQ(factory.root["model"], json::parse(R"({"path": "m", "quantize": "fp4", "double_quant": false,
                                                   "compute_dtype": "bf16", "router_aux_loss_coef": 0.01})"));
  EXPECT_EQ(factory.root["adapter"]["target_modules"], json::parse(R"(["q_proj", "v_proj"])"));
  EXPECT_EQ(factory.root["adapter"]["modules_to_save"], json::parse(R"(["embed_tokens", "lm_head"])"));
  EXPECT_EQ(factory.root["adapter"]["init_lora_weights"], "pissa_niter_4");
  EXPECT_EQ(factory.root["train"]["gradient_checkpointing"], "none");
  for (const Converted* converted : {&axolotl, &factory})
    EXPECT_THAT(converted->result.notes, Each(Not(HasSubstr("no counterpart"))));
}

TEST(ConvertRecipe, TrlQuantizesNoScales) {
  const std::string theirs = "model_name_or_path: m\ndataset_name: d.jsonl\noutput_dir: o\nuse_peft: true\n";
  EXPECT_FALSE(Converted(theirs).root["model"].contains("double_quant"));
  EXPECT_EQ(Converted(theirs + "load_in_4bit: true\n").root["model"]["double_quant"], false);
  const Converted nested(theirs + "load_in_4bit: true\nuse_bnb_nested_quant: true\n");
  EXPECT_EQ(nested.root["model"]["double_quant"], true);
}

TEST(ConvertRecipe, KeysOfAnAdapterMakeNone) {
  const Converted factory(
      "model_name_or_path: m\nfinetuning_type: full\ndataset: d\noutput_dir: o\nlora_target: all\n");
  EXPECT_FALSE(factory.root.contains("adapter"));
  EXPECT_THAT(factory.result.notes, Contains(HasSubstr("lora_target: there is no adapter")));
  const Converted axolotl("base_model: m\ndatasets: d.jsonl\noutput_dir: o\nlora_target_linear: true\n");
  EXPECT_FALSE(axolotl.root.contains("adapter"));
}

// Axolotl joins the two.
TEST(ConvertRecipe, EveryLinearModuleIsMoreThanAListOfThem) {
  const std::string theirs = "base_model: m\ndatasets: d.jsonl\noutput_dir: o\nadapter: lora\n";
  for (const char* both : {"lora_target_linear: true\nlora_target_modules: [q_proj, embed_tokens]\n",
                           "lora_target_modules: [q_proj, embed_tokens]\nlora_target_linear: true\n"}) {
    const Converted converted(theirs + both);
    EXPECT_EQ(converted.root["adapter"]["target_modules"], "all-linear");
    EXPECT_THAT(converted.result.notes, Contains(HasSubstr("lora_target_modules: lora_target_linear adapts every")));
  }
  const Converted off(theirs + "lora_target_linear: false\nlora_target_modules: [q_proj]\n");
  EXPECT_EQ(off.root["adapter"]["target_modules"], json::parse(R"(["q_proj"])"));
}

TEST(ConvertRecipe, OtherFilesAreRefused) {
  EXPECT_THAT(error_of<UsageError>([] { convert_recipe("{\"model\": {\"path\": \"m\"}}", "r.json"); }),
              HasSubstr("r.json: is a configuration of no tool that is known"));
  EXPECT_THAT(error_of<UsageError>([] { convert_recipe("- a\n", "r.yml"); }), HasSubstr("r.yml: "));
  EXPECT_THAT(error_of<InputError>([] { convert_recipe("a: [\n", "r.yml"); }), HasSubstr("r.yml:2:1: is no YAML"));
}

TEST(RecipeInYaml, IsTheRecipeInJson) {
  const Recipe yaml = parse_recipe(
      "model: {path: m}\nadapter:\n  r: 4 # small\ndata:\n  train: [a.jsonl]\noptimizer:\n  lr: 1e-4\noutput: {dir: "
      "o}\n",
      "r.yaml", {"train.steps=3"});
  const Recipe same = parse_recipe(
      R"({"model": {"path": "m"}, "adapter": {"r": 4}, "data": {"train": ["a.jsonl"]}, "optimizer": {"lr": 1e-4},
          "output": {"dir": "o"}})",
      "r.json", {"train.steps=3"});
  EXPECT_EQ(to_json(yaml), to_json(same));
  EXPECT_THAT(error_of<UsageError>([] { parse_recipe("model: {pth: m}\n", "r.yaml", {}); }),
              HasSubstr("r.yaml: model.pth: unknown key; did you mean model.path?"));
  EXPECT_THAT(error_of<InputError>([] { parse_recipe("model: {path: \xff}\n", "r.yaml", {}); }), HasSubstr("UTF-8"));
  EXPECT_THAT(error_of<UsageError>([] { parse_recipe("", "r.yml", {}); }), HasSubstr("r.yml: a recipe is a mapping"));
}

}  // namespace
}  // namespace nibble
