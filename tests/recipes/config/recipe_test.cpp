#include "nibble/recipes/config/recipe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "nibble/core/base/error.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

const std::vector<std::string> kSmallest = {"model.path=m", "data.train=d.jsonl", "output.dir=out"};

Recipe with(std::vector<std::string> overrides, const std::string& text = "{}") {
  overrides.insert(overrides.begin(), kSmallest.begin(), kSmallest.end());
  return parse_recipe(text, "r.json", overrides);
}

std::string usage_error(const std::string& text, const std::vector<std::string>& overrides = kSmallest) {
  try {
    parse_recipe(text, "r.json", overrides);
  } catch (const UsageError& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  } catch (const std::exception& error) {
    return std::string("no UsageError but: ") + error.what();
  }
  return "accepted";
}

std::string override_error(const std::string& text) {
  std::vector<std::string> overrides = kSmallest;
  overrides.push_back(text);
  return usage_error("{}", overrides);
}

TEST(Recipe, SmallestHasTheDefaultsOfTheInterface) {
  const Recipe recipe = with({});
  EXPECT_EQ(recipe.model.path, "m");
  EXPECT_FALSE(recipe.model.quantize);
  EXPECT_TRUE(recipe.model.double_quant);
  EXPECT_EQ(recipe.model.block_size, 64);
  EXPECT_TRUE(recipe.model.compute_dtype);
  EXPECT_FALSE(recipe.adapter);
  EXPECT_EQ(recipe.data.max_length, 2048);
  EXPECT_TRUE(recipe.data.pack);
  EXPECT_TRUE(recipe.data.shuffle);
  EXPECT_FALSE(recipe.data.train_on_prompt);
  EXPECT_EQ(recipe.train.epochs, 1.0);
  EXPECT_FALSE(recipe.train.steps);
  EXPECT_EQ(recipe.train.microbatch_size, 1);
  EXPECT_EQ(recipe.train.accumulate, 1);
  EXPECT_EQ(recipe.train.gradient_sum, GradientSum::running);
  EXPECT_EQ(recipe.train.max_grad_norm, 1.0);
  EXPECT_EQ(recipe.train.seed, 0);
  EXPECT_EQ(recipe.optimizer.lr, 2e-4);
  EXPECT_EQ(recipe.optimizer.beta2, 0.999);
  EXPECT_EQ(recipe.optimizer.schedule, ScheduleKind::cosine);
  EXPECT_EQ(recipe.output.resume, "auto");
  EXPECT_EQ(recipe.output.keep_last, 2);
}

TEST(Recipe, AdapterDefaultsAreTheInterfacesNotPefts) {
  const Recipe recipe = with({}, R"({"adapter": {"use_rslora": true}})");
  ASSERT_TRUE(recipe.adapter);
  EXPECT_EQ(recipe.adapter->options.r, 16);
  EXPECT_EQ(recipe.adapter->options.lora_alpha, 32);
  EXPECT_TRUE(recipe.adapter->options.target_modules.all_linear());
  EXPECT_EQ(recipe.adapter->given, std::vector<std::string>{"use_rslora"});
  EXPECT_EQ(recipe.train.gradient_sum, GradientSum::tree);
}

TEST(Recipe, ReadsEveryKindOfValueAndComments) {
  const Recipe recipe = parse_recipe(R"(// what it does
{
  "$schema": "schema.json",
  "model": {"path": "/base", "quantize": "nf4", "skip_modules": ["lm_head"], "compute_dtype": "f32"},
  "adapter": {"type": "lora", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"],
              "rank_pattern": {"z.q_proj": 2, "down_proj": 6}, "init_lora_weights": "gaussian",
              "layers_to_transform": [0, 3]},
  "data": {"train": ["a.jsonl", {"path": "b.jsonl", "weight": 0.5}], "format": "tokens", "truncate": "cut"},
  "train": {"steps": 8, "save_every": "10min", "eval_every": 0, "max_grad_norm": 0 /* off */},
  "optimizer": {"lr": 5e-3, "betas": [0.8, 0.95], "schedule": "linear", "warmup_ratio": 0.1},
  "output": {"dir": "out"}
})",
                                     "r.json");
  EXPECT_EQ(recipe.model.quantize, QuantType::nf4);
  EXPECT_EQ(recipe.model.compute_dtype, ComputeDtype::f32);
  EXPECT_EQ(recipe.adapter->options.target_modules.names, (std::vector<std::string>{"q_proj", "v_proj"}));
  const std::vector<std::pair<std::string, int64_t>> ranks = {{"z.q_proj", 2}, {"down_proj", 6}};
  EXPECT_EQ(recipe.adapter->options.rank_pattern, ranks) << "in the order of the file";
  EXPECT_EQ(recipe.adapter->options.init_lora_weights, LoraInit::gaussian);
  ASSERT_EQ(recipe.data.train.size(), 2u);
  EXPECT_EQ(recipe.data.train[1].weight, 0.5);
  EXPECT_EQ(recipe.data.format, DataFormat::tokens);
  EXPECT_EQ(recipe.train.save_every.seconds, 600);
  EXPECT_EQ(recipe.optimizer.beta1, 0.8);
  EXPECT_EQ(recipe.optimizer.schedule_for(101).warmup_steps, 11);
}

TEST(Recipe, ResolvedJsonReadsBackToItself) {
  const std::string full = R"({"adapter": {"r": 4, "alpha_pattern": {"q": 3.5}, "exclude_modules": "a.*b"},
    "data": {"eval": ["e.jsonl"], "fields": {"prompt": "question"}},
    "train": {"epochs": 2.5, "save_every": "90s", "eval_every": 7, "early_stop": 3},
    "optimizer": {"lr": 0.1, "no_decay": ["norm", "bias"]}, "output": {"keep_best": true}})";
  for (const std::string& text : {std::string("{}"), full}) {
    const std::string once = to_json(with({}, text));
    EXPECT_EQ(to_json(parse_recipe(once, "recipe.json")), once);
  }
  EXPECT_NE(to_json(with({}, full)).find("\"90s\""), std::string::npos);
}

TEST(Recipe, OverridesAreJsonOrElseText) {
  const Recipe recipe = with({"train.steps=5", "optimizer.lr=1e-3", "adapter.target_modules=[\"q_proj\"]",
                              "adapter.r=2", "model.path=123", "data.train=x=y.jsonl",
                              "adapter.init_lora_weights=false", "data.pack=false", "train.save_every=2h"});
  EXPECT_EQ(recipe.train.steps, 5);
  EXPECT_EQ(recipe.optimizer.lr, 1e-3);
  EXPECT_EQ(recipe.adapter->options.r, 2);
  EXPECT_EQ(recipe.adapter->options.target_modules.names.size(), 1u);
  EXPECT_EQ(recipe.adapter->options.init_lora_weights, LoraInit::random);
  EXPECT_EQ(recipe.model.path, "123");
  EXPECT_EQ(recipe.data.train[0].path, "x=y.jsonl");
  EXPECT_FALSE(recipe.data.pack);
  EXPECT_EQ(recipe.train.save_every.seconds, 7200);
}

TEST(Recipe, TensorsOfExpertsMayBeTrainedAlone) {
  const Recipe recipe = with({"adapter.target_modules=[]", "adapter.target_parameters=[experts.down_proj]"});
  EXPECT_TRUE(recipe.adapter->options.target_modules.empty());
  const std::string text = to_json(recipe);
  EXPECT_NE(text.find("\"target_modules\": []"), std::string::npos) << text;
  EXPECT_EQ(to_json(parse_recipe(text, "recipe.json")), text);
  EXPECT_TRUE(with({"adapter.path=a", "adapter.target_modules=[]"}).adapter);
}

TEST(Recipe, AnOverrideSetsAMemberOfAnObject) {
  const std::string text = R"({"adapter": {"r": 4}, "train": {"steps": 3}})";
  const auto fields =
      with({"data.fields={\"prompt\":\"q\"}", "data.fields.completion=a b", "data.fields.prompt=Frage"}, text)
          .data.fields;
  EXPECT_EQ(fields, (std::map<std::string, std::string>{{"completion", "a b"}, {"prompt", "Frage"}}));
  EXPECT_EQ(with({"adapter.rank_pattern.layers.0.q_proj=2"}, text).adapter->options.rank_pattern.at(0),
            (std::pair<std::string, int64_t>{"layers.0.q_proj", 2}));
  EXPECT_NE(override_error("data.fields={prompt: q}").find("(or data.fields.prompt=question)"), std::string::npos);
  EXPECT_EQ(override_error("train.steps.more=1").find("command line: train.steps.more: unknown key"), 0u);
}

TEST(Recipe, NullTakesAKeyOrSectionAway) {
  const std::string text = R"({"adapter": {"r": 4}, "train": {"steps": 3}})";
  EXPECT_FALSE(with({"adapter=null"}, text).adapter);
  const Recipe recipe = with({"train.steps=null"}, text);
  EXPECT_FALSE(recipe.train.steps);
  EXPECT_EQ(recipe.train.epochs, 1.0);
}

TEST(Recipe, UnknownKeysAreRefusedWithTheNearestOne) {
  EXPECT_EQ(usage_error(R"({"train": {"microbatchsize": 2}})"),
            "r.json: train.microbatchsize: unknown key; did you mean train.microbatch_size?");
  EXPECT_EQ(usage_error(R"({"optimiser": {}})"), "r.json: optimiser: unknown key; did you mean optimizer?");
  EXPECT_EQ(usage_error(R"({"train": {"lr": 2}})"), "r.json: train.lr: unknown key; did you mean optimizer.lr?");
  EXPECT_EQ(override_error("adapter.rank=4").find("command line: adapter.rank: unknown key"), 0u);
  EXPECT_EQ(override_error("steps=4"), "command line: steps: unknown key; did you mean train.steps?");
  EXPECT_EQ(override_error("train.steps"), "command line: train.steps: not an override; write key.path=value");
}

TEST(Recipe, StatesIn8BitsAreNotShardedWithTheirTensors) {
  std::vector<std::string> overrides = kSmallest;
  overrides.insert(overrides.end(), {"optimizer.type=adamw8bit", "parallel.tensor=2"});
  EXPECT_NE(usage_error("{}", overrides)
                .find("optimizer.type: adamw8bit keeps its state in blocks that parallel.tensor would split; use "),
            std::string::npos);
  overrides.back() = "parallel.shard=2";
  EXPECT_EQ(usage_error("{}", overrides), "accepted");
}

struct BadValue {
  const char* override_text;
  const char* message;
};

class BadValues : public testing::TestWithParam<BadValue> {};

TEST_P(BadValues, IsRefusedAtItsKey) {
  const std::string got = override_error(GetParam().override_text);
  EXPECT_NE(got.find(GetParam().message), std::string::npos) << got;
  const std::string key =
      std::string(GetParam().override_text).substr(0, std::string(GetParam().override_text).find('='));
  EXPECT_EQ(got.find("command line: " + key + ": "), 0u) << got;
}

INSTANTIATE_TEST_SUITE_P(
    Recipe, BadValues,
    testing::Values(
        BadValue{"optimizer.lr=-1", "must be a number from 0"}, BadValue{"optimizer.lr=NaN", "not \"NaN\""},
        BadValue{"optimizer.lr=1e400", "must be a number from 0, at most 3.4e+38, not \"1e400\""},
        BadValue{"optimizer.lr=1e300", "a number from 0, at most 3.4e+38"},
        BadValue{"optimizer.lr=-1e300", "from 0, not"}, BadValue{"optimizer.lr=1e-50", "from 0 (0, or from 1.4e-45)"},
        BadValue{"optimizer.eps=1e-46", "above 0, from 1.4e-45"}, BadValue{"optimizer.eps=0", "above 0"},
        BadValue{"optimizer.betas=[0.999999999,0.9]", "in 32 bits, where this is 1, not 0.999999999"},
        BadValue{"train.epochs=1e300", "must be a number above 0, from 1.4e-45 to 3.4e+38, not 1e+300"},
        BadValue{"train.epochs=1e-300", "above 0, from 1.4e-45"}, BadValue{"optimizer.lr=\"1e-3\"", "must be a number"},
        BadValue{"optimizer.betas=[0.9]", "two numbers"}, BadValue{"optimizer.betas=[0.9,1]", "two numbers"},
        BadValue{"optimizer.eps=-1e-8", "must be a number"}, BadValue{"optimizer.type=adamv", "did you mean adamw"},
        BadValue{"optimizer.schedule=cosin", "did you mean cosine"},
        BadValue{"optimizer.warmup_steps=-1", "an integer from 0"}, BadValue{"optimizer.warmup_ratio=1.5", "below 1"},
        BadValue{"optimizer.min_lr=1", "larger than optimizer.lr"}, BadValue{"train.steps=0", "an integer from 1"},
        BadValue{"train.steps=-4", "an integer from 1"}, BadValue{"train.steps=2.5", "an integer from 1"},
        BadValue{"train.steps=1e400", "an integer"}, BadValue{"train.steps=99999999999999999999", "an integer"},
        BadValue{"train.steps=true", "an integer"}, BadValue{"train.epochs=0", "above 0"},
        BadValue{"train.epochs=-1", "above 0"}, BadValue{"train.epochs=NaN", "above 0"},
        BadValue{"train.microbatch_size=0", "from 1"}, BadValue{"train.accumulate=0", "from 1"},
        BadValue{"train.seed=-1", "from 0"}, BadValue{"train.max_grad_norm=-1", "from 0"},
        BadValue{"train.save_every=10 minutes", "10min"}, BadValue{"train.save_every=-5", "number of steps"},
        BadValue{"train.save_every=0min", "10min"}, BadValue{"train.eval_every=5", "nothing to evaluate on"},
        BadValue{"train.early_stop=2", "nothing to evaluate on"},
        BadValue{"train.gradient_sum=three", "did you mean tree"},
        BadValue{"output.keep_best=true", "nothing to evaluate on"}, BadValue{"output.keep_last=0", "from 1"},
        BadValue{"output.force=yes", "true or false"}, BadValue{"model.block_size=48", "power of two"},
        BadValue{"model.block_size=16", "from 32"}, BadValue{"model.quantize=nf5", "did you mean nf4"},
        BadValue{"model.quantize=nf4", "cannot be trained"}, BadValue{"model.init=c.json", "contradicts model.path"},
        BadValue{"model.router_aux_loss_coef=1e30", "from 0 to below 100, not 1e+30"},
        BadValue{"model.compute_dtype=f16", "must be bf16 | f32 | int8"},
        BadValue{"model.compute_dtype=int8", "not multiplied in 8 bits"}, BadValue{"adapter.r=0", "from 1"},
        BadValue{"adapter.lora_dropout=1", "below 1"}, BadValue{"adapter.init_lora_weights=eva", "does not make"},
        BadValue{"adapter.init_lora_weights=\"gausian\"", "must be true | false"},
        BadValue{"adapter.rank_pattern={\"a\":0}", "integers from 1"}, BadValue{"adapter.target_modules=", "a list"},
        BadValue{"adapter.target_modules=[]", "names no module; name some, or tensors of experts"},
        BadValue{"adapter.trainable_token_indices=[-1]", "a list of token ids"},
        BadValue{"data.max_length=1", "from 2"}, BadValue{"data.max_length=16777217", "to 16777216"},
        BadValue{"data.eval_fraction=1", "below 1"}, BadValue{"data.format=jsonl", "must be auto | alpaca"},
        BadValue{"data.train=[{\"file\":\"x\"}]", "path"},
        BadValue{"data.train=[{\"path\":\"x\",\"weight\":-1}]", "weight"}, BadValue{"parallel.tensor=0", "from 1"},
        BadValue{"parallel.schedule=2f2b", "must be naive | gpipe"}));

TEST(Recipe, RequiredKeysAreNamed) {
  EXPECT_EQ(usage_error("{}", {}), "r.json: model.path: is missing; name a model directory");
  EXPECT_EQ(usage_error("{}", {"model.path=m"}), "r.json: data.train: is missing; name a data file");
  EXPECT_EQ(usage_error("{}", {"model.path=m", "data.train=d"}),
            "r.json: output.dir: is missing; name a directory to write to");
}

TEST(Recipe, ContradictionsAreNamed) {
  EXPECT_NE(usage_error(R"({"train": {"steps": 3, "epochs": 1}})").find("contradicts train.epochs"), std::string::npos);
  EXPECT_NE(usage_error(R"({"model": 3})").find("model"), std::string::npos);
  EXPECT_EQ(usage_error("[]"), "r.json: a recipe is a JSON object; begin with {");
  EXPECT_NE(usage_error("{}", {"model.init=c.json", "adapter.r=2", "data.train=d", "output.dir=o"})
                .find("random weights need no adapter"),
            std::string::npos);
}

TEST(Recipe, LoraPlusNeedsAnAdapterAndARate) {
  EXPECT_EQ(override_error("optimizer.loraplus_lr_ratio=-1"),
            "command line: optimizer.loraplus_lr_ratio: must be a number from 0, not -1");
  std::vector<std::string> overrides = kSmallest;
  overrides.emplace_back("optimizer.loraplus_lr_ratio=16");
  EXPECT_EQ(usage_error("{}", overrides),
            "command line: optimizer.loraplus_lr_ratio: is for adapters, and there is none; add an adapter section, or "
            "leave it out");
  EXPECT_EQ(usage_error(R"({"adapter": {}, "optimizer": {"lr": 0}})", overrides),
            "command line: optimizer.loraplus_lr_ratio: multiplies optimizer.lr, which is 0; raise optimizer.lr");
  EXPECT_EQ(usage_error(R"({"adapter": {}})", overrides), "accepted");
}

TEST(Recipe, DataAreNotCachedInAModel) {
  const test::TemporaryDirectory directory;
  const std::string root = directory.path().string();
  const std::string refused = "command line: data.cache: lies in a model, adapter or tokenizer that is read";
  std::filesystem::create_directories(directory / "m");
  std::filesystem::create_directories(directory / "data");
  const auto cached_at = [&](const std::string& place) {
    return usage_error("{}", {"model.path=" + root + "/m", "data.train=" + root + "/data", "output.dir=" + root + "/o",
                              "data.cache=" + root + place});
  };
  EXPECT_EQ(cached_at("/m").find(refused), 0u) << cached_at("/m");
  EXPECT_EQ(cached_at("/m/cache").find(refused), 0u);
  for (const char* place : {"", "/cache", "/data", "/data/cache", "/o"}) EXPECT_EQ(cached_at(place), "accepted");
}

TEST(Recipe, BrokenFilesAreRefusedWithTheirPlace) {
  try {
    parse_recipe("{\n  \"train\": {,}\n}", "r.json");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(std::string(error.what()).find("r.json:2:"), 0u) << error.what();
  }
  EXPECT_THROW(parse_recipe(R"({"train": {"steps": 1, "steps": 2}})", "r.json"), InputError);
  EXPECT_THROW(parse_recipe(R"({"optimizer": {"lr": 1e400}})", "r.json"), InputError);
  EXPECT_THROW(read_recipe("/nonexistent/recipe.json"), IoError);
}

TEST(Recipe, OnlyWhatDecidesTheBitsIsFixed) {
  const auto base = fixed_settings(with({"adapter.r=4"}));
  for (const std::string change :
       {"train.threads=2", "train.log_every=5", "train.save_every=1", "output.keep_last=7", "output.dir=elsewhere",
        "model.path=/mnt/m", "data.train=/mnt/d.jsonl", "train.gradient_checkpointing=block"}) {
    EXPECT_EQ(fixed_settings(with({"adapter.r=4", change})), base) << change;
  }
  for (const std::string change :
       {"train.seed=1", "train.microbatch_size=2", "train.accumulate=2", "optimizer.lr=1", "optimizer.schedule=linear",
        "adapter.r=8", "adapter.lora_dropout=0.1", "data.pack=false", "data.max_length=9", "model.compute_dtype=f32",
        "model.compute_dtype=bf16", "model.compute_dtype=int8", "train.steps=9", "train.gradient_sum=running",
        "optimizer.warmup_steps=3", "optimizer.loraplus_lr_ratio=2", "train.neftune_noise_alpha=5"}) {
    if (to_json(with({"adapter.r=4", change})) == to_json(with({"adapter.r=4"}))) continue;  // the CPU's default
    EXPECT_NE(fixed_settings(with({"adapter.r=4", change})), base) << change;
  }
  EXPECT_EQ(fixed_settings(with({"optimizer.schedule=constant", "train.steps=5"})),
            fixed_settings(with({"optimizer.schedule=constant", "train.steps=50"})))
      << "a run with a constant rate may be made longer";
}

// A key that one of them has not counts as a difference: new ones are left out while they are off.
TEST(Recipe, RunsOfEarlierVersionsGoOn) {
  const std::map<std::string, std::set<std::string>> known = {
      {"adapter",
       {"alpha_pattern", "bias", "exclude_modules", "init_lora_weights", "layers_pattern", "layers_to_transform",
        "lora_alpha", "lora_bias", "lora_dropout", "modules_to_save", "r", "rank_pattern", "target_modules",
        "target_parameters", "trainable_token_indices", "type", "use_dora", "use_rslora"}},
      {"data",
       {"eval_fraction", "fields", "format", "hidden_parts", "max_length", "pack", "shuffle", "skip_bad", "template",
        "train_on_prompt", "truncate"}},
      {"model", {"block_size", "compute_dtype", "double_quant", "quantize", "router_aux_loss_coef", "skip_modules"}},
      {"optimizer",
       {"betas", "eps", "lr", "min_lr", "no_decay", "schedule", "type", "warmup_ratio", "warmup_steps",
        "weight_decay"}},
      {"train", {"accumulate", "epochs", "gradient_sum", "max_grad_norm", "microbatch_size", "seed", "steps"}}};
  std::map<std::string, std::set<std::string>> found;
  for (const auto& [key, value] : fixed_settings(with({"adapter.r=4"}))) {
    found[key.substr(0, key.find('.'))].insert(key.substr(key.find('.') + 1));
  }
  EXPECT_EQ(found, known);
}

// The other keys would be those of a new adapter.
TEST(Recipe, OfAContinuedAdapterOnlyWhatIsGivenIsWritten) {
  const Recipe recipe = with({"adapter.path=runs/a", "adapter.r=4"});
  const std::string text = to_json(recipe);
  EXPECT_EQ(nlohmann::json::parse(text)["adapter"].dump(), R"({"lora_dropout":0.0,"path":"runs/a","r":4})");
  EXPECT_EQ(to_json(parse_recipe(text, "r.json")), text);
}

TEST(Recipe, EveryKeyIsDescribedOnce) {
  std::set<std::string> names;
  for (const RecipeKey& key : recipe_keys()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    EXPECT_FALSE(key.values.empty() || key.meaning.empty()) << key.name;
  }
  for (const char* name : {"model.path", "adapter.target_modules", "data.truncate", "train.accumulate",
                           "optimizer.no_decay", "parallel.timeout_seconds", "output.force"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

}  // namespace
}  // namespace nibble
