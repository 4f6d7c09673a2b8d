#pragma once
// The recipe: one JSON file (comments allowed) that says what a run does. This struct mirrors it key by key; the table
// behind recipe_keys() describes every key once, and parsing, checking, writing and the documentation all come from it.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "nibble/adapters/options.h"
#include "nibble/core/data/data_options.h"
#include "nibble/core/nn/activation_store.h"
#include "nibble/core/objectives/options.h"
#include "nibble/core/ops/cpu/gemm/bf16_products.h"
#include "nibble/core/train/optimizer.h"
#include "nibble/core/train/run/run.h"
#include "nibble/core/train/schedule.h"
#include "nibble/core/train/train_step.h"
#include "nibble/parallel/mesh.h"
#include "nibble/parallel/pipeline/schedule.h"
#include "nibble/quant/quantized_matrix.h"

namespace nibble {

/// The arithmetic of products: floats of 4 or 2 bytes; or 8 bits for those with a frozen base, and the floats that the
/// CPU is best at for all others.
enum class ComputeDtype : uint8_t { f32, bf16, int8 };

/// The score head in which a model ends instead of its head.
struct ScoreHead {
  int64_t labels = 0;   ///< 0: as the files say
  std::string adapter;  ///< PEFT directory that may bring its weight; empty: none
};

struct ModelRecipe {
  std::string path;                   ///< Hugging Face directory
  std::string init;                   ///< or: a config.json to start from random weights (pretraining)
  std::string tokenizer;              ///< directory or file; empty: the model's own
  std::optional<QuantType> quantize;  ///< absent: "none"
  bool double_quant = true;
  int64_t block_size = 64;
  std::optional<std::vector<std::string>> skip_modules;  ///< absent: as bitsandbytes
  std::optional<double> router_aux_loss_coef;            ///< absent: as config.json says
  std::optional<ComputeDtype> compute_dtype;             ///< always set in what read_recipe returns
  bool names_dtype = false;                              ///< no key: whether compute_dtype was given
  std::optional<ops::Bf16Products> bf16_products;        ///< absent: as products() says
  std::optional<ScoreHead> score;                        ///< no key: what the objective asks for

  bool int8() const { return compute_dtype == ComputeDtype::int8; }
  /// f32 or bf16: of activations and of products that are not in 8 bits.
  DType dtype() const;
  /// bf16_products; where it is absent bf16 for a dtype that was named, else what is faster on this CPU.
  ops::Bf16Products products() const;
  /// Whether products of bf16 tensors, if there are any, are computed by bf16 instructions.
  bool multiplies_bf16() const { return dtype() == DType::bf16 && products() == ops::Bf16Products::bf16; }
};

/// "int8 with bf16", "f32", "bf16 multiplied in f32"
std::string describe_arithmetic(const ModelRecipe& model);

/// The recipe's own defaults of an adapter: all-linear, r 16, lora_alpha 32.
AdapterOptions default_adapter_options();

struct AdapterRecipe {
  std::string type = "lora";
  std::string path;  ///< continue from this PEFT directory
  AdapterOptions options = default_adapter_options();
  /// Keys of this section that the recipe gives (the others have their defaults): with `path`, only these must agree
  /// with the directory's adapter_config.json.
  std::vector<std::string> given;
};

struct TrainRecipe {
  std::optional<double> epochs;  ///< one of epochs and steps is set in what read_recipe returns
  std::optional<int64_t> steps;
  int64_t microbatch_size = 1;
  int64_t accumulate = 1;
  std::optional<GradientSum> gradient_sum;          ///< always set in what read_recipe returns
  std::optional<Recompute> gradient_checkpointing;  ///< absent: "auto", decided when the run starts
  double max_grad_norm = 1.0;                       ///< 0: off
  double neftune_noise_alpha = 0;                   ///< 0: off
  int64_t seed = 0;
  int64_t threads = 0;  ///< 0: all cores
  int64_t log_every = 1;
  Interval eval_every;
  Interval save_every{0, 600};
  int64_t samples = 0;     ///< prompts of the data that the model continues before, at evaluations and after
  int64_t early_stop = 0;  ///< evaluations without a new lowest loss; 0: never
  int64_t max_bad_steps = 3;
  double stall_seconds = 600;
};

/// What says how good an answer is: an entry of `rewards`.
struct RewardRecipe {
  enum class Type : uint8_t { exact, number, regex, length, repetition, command, model };
  Type type = Type::exact;
  std::string name;  ///< of its metrics; empty: the type's
  double weight = 1;
  std::string column;              ///< exact, number: the field of the prompt's record that has the right answer
  std::string pattern;             ///< regex
  int64_t max_completion_len = 0;  ///< length: tokens from which the penalty is 1
  int64_t soft_punish_cache = 0;   ///< and how many before that it begins
  int64_t ngram_size = 3;          ///< repetition: words
  double max_penalty = -1;         ///< repetition
  std::vector<std::string> argv;   ///< command
  double timeout_seconds = 60;     ///< for the answers of a step
  int64_t memory_bytes = 0;        ///< of the command's address space; 0: no limit
  bool null_on_failure = false;    ///< a command that fails has nothing to say, instead of ending the run
  std::string path;                ///< model: a directory with a score head, or an adapter with one for model.path
};

struct OptimizerRecipe {
  OptimizerKind type = OptimizerKind::adamw;
  double lr = 2e-4;
  double loraplus_lr_ratio = 0;  ///< 0: off
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  std::vector<std::string> no_decay;
  ScheduleKind schedule = ScheduleKind::cosine;
  int64_t warmup_steps = 0;
  double warmup_ratio = 0;
  double min_lr = 0;

  /// layer_norms: see there.
  OptimizerOptions options(bool layer_norms = false) const;
  /// The schedule over `total_steps` updates, warmup_ratio as steps of them.
  Schedule schedule_for(int64_t total_steps) const;
};

/// How the ranks of a run share the work; the product of the degrees is their number.
struct ParallelRecipe {
  int64_t pipeline = 1, tensor = 1, shard = 1, replicate = 1, experts = 1;
  int64_t zero = 3;             ///< what the shard axis shards, see ShardLevel
  bool shard_adapters = false;  ///< whether adapters are sharded too, or full on every rank
  bool reshard_after_forward = true;
  int64_t prefetch = 1;
  DType wire_dtype = DType::f32;
  double timeout_seconds = 600;
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  int64_t microbatches = 0;     ///< in flight in a pipeline; 0: all of the step
  std::vector<int64_t> stages;  ///< layers of each stage; empty: placed by time
  bool offload_activations = false;
  std::string offload_directory;  ///< of the file for them; empty: output.dir

  MeshShape mesh() const {
    return {.pipeline = pipeline, .replicate = replicate, .shard = shard, .tensor = tensor, .experts = experts};
  }
};

struct OutputRecipe {
  std::string dir;
  std::string resume = "auto";  ///< auto, never, or a checkpoint's path
  int64_t keep_last = 2;
  bool keep_best = false;
  bool force = false;
};

/// Paths are used as they are given: relative ones start at the directory the program runs in, not at the recipe file.
struct Recipe {
  ModelRecipe model;
  std::optional<AdapterRecipe> adapter;  ///< absent: every weight is trained
  ObjectiveOptions objective;
  std::vector<RewardRecipe> rewards;
  DataOptions data;  ///< key "template" is chat_template
  TrainRecipe train;
  OptimizerRecipe optimizer;
  ParallelRecipe parallel;
  OutputRecipe output;

  /// `rewards`, and objective.reward_model as the last of them.
  std::vector<RewardRecipe> all_rewards() const;
  /// Files and directories that a run reads, which must not be where a command writes; also words that stand for one.
  std::vector<std::filesystem::path> inputs() const;
  bool is_preference() const { return objective.type != ObjectiveType::sft; }
  bool has_rollouts() const { return nibble::has_rollouts(objective); }
  /// Whether it starts from random weights (model.init) instead of a model.
  bool pretrains() const { return !model.init.empty(); }
};

/// Reads a recipe file and applies overrides "key.path=value" in order (value is JSON, or else a string; null takes a
/// key or a whole section away). Checks everything that can be checked without opening other files and fills defaults.
/// Throws UsageError for an unknown key (with the nearest known one), a wrong type, a value out of range, keys that
/// contradict each other, and features that do not exist yet, each with place "file: key.path"; InputError when the
/// file is no JSON (with line and column) or names a key twice; IoError when it cannot be read.
Recipe read_recipe(const std::string& file, const std::vector<std::string>& overrides = {});

/// The same from text; `place` stands for the file in messages.
Recipe parse_recipe(const std::string& text, const std::string& place, const std::vector<std::string>& overrides = {});

/// Every key with its value, in a fixed order, as JSON: written to recipe.json and checkpoints. Reads back to the same
/// recipe.
std::string to_json(const Recipe& recipe);

/// The values that decide the bits of a run, key -> JSON text; they must not change when a run is continued. Data and
/// model appear here by their settings; the recipe adds fingerprints of what the paths hold.
std::map<std::string, std::string> fixed_settings(const Recipe& recipe);

/// What Run needs to know from a recipe of `total_steps` steps. Callers add fingerprints to settings.
RunOptions run_options(const Recipe& recipe, int64_t total_steps);

/// One key of the recipe, for documentation and schema.
struct RecipeKey {
  std::string name;           ///< "train.microbatch_size"
  std::string values;         ///< what it takes: "integer from 1", "nf4 | fp4 | none"
  std::string default_value;  ///< JSON text; empty: none, or decided when the run starts
  std::string meaning;        ///< one line
};

/// All keys, in the order of to_json.
std::vector<RecipeKey> recipe_keys();

/// JSON Schema (draft 2020-12) of the recipe, for editors.
std::string recipe_schema();

}  // namespace nibble
