#include "nibble/recipes/plan/plan_job.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "nibble/adapters/attach.h"
#include "nibble/adapters/peft/peft_directory.h"
#include "nibble/core/data/records/record_reader.h"
#include "nibble/core/io/hub/fp8_tensor.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/models/families/family_names.h"
#include "nibble/core/models/load.h"
#include "nibble/core/models/shared_modules.h"
#include "nibble/core/models/tensor_source.h"
#include "nibble/core/ops/meta/meta_device.h"
#include "nibble/quant/bnb_layout.h"
#include "nibble/quant/codec.h"
#include "nibble/quant/mxfp4_layout.h"
#include "nibble/quant/nf4_weight.h"
#include "nibble/quant/quantization_config.h"
#include "nibble/recipes/config/recipe_checks.h"
#include "nibble/recipes/models/open_model.h"
#include "nibble/recipes/models/tokenizers.h"
#include "nibble/recipes/preferences/reference_model.h"
#include "nibble/recipes/reinforcement/block.h"
#include "nibble/recipes/reinforcement/model_reward.h"
#include "nibble/recipes/reinforcement/value_model.h"
#include "nibble/recipes/training/training_data.h"

namespace nibble {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kQuantizedAtOnce = int64_t{1} << 22;  // elements, see load_quantized
// What stays of training a tokenizer: code of the library, and pages of the heap that hold something else too.
constexpr int64_t kTokenizerTraining = int64_t{6} << 20;

/// How the base is stored: by the headers of its files, else by config.json, else as bf16.
class StoredBase {
 public:
  StoredBase(const ModelRecipe& base, const DecoderConfig& config, bool look) : rows_(config.vocab_size) {
    if (base.quantize) {
      codec_ = {.double_quant = base.double_quant, .block_size = base.block_size};
      skip_.emplace(base.skip_modules, std::vector<std::string>{config.names.head, kScoreHead});
    }
    const fs::path directory = base.path;
    if (!look || base.path.empty() || !fs::is_directory(directory)) return;
    if (holds_weights(directory)) checkpoint_.emplace(open_checkpoint(directory));
    const std::string place = (directory / "config.json").string();
    const nlohmann::json stored = parse_json(read_text_file(place), place, kModelConfigJson);
    for (const char* key : {"dtype", "torch_dtype"}) {
      if (stored.contains(key) && stored[key] == "float32") dense_ = DType::f32;
    }
    if (is_eight_bit(stored, place)) return;
    if (const auto packed = read_quantization_config(stored, place)) {
      in_file_ = true;
      mxfp4_ = packed->type == QuantType::mxfp4;
      codec_ = {.double_quant = packed->double_quant};
      skip_.emplace(packed->skip_modules, std::vector<std::string>{config.names.head, kScoreHead});
    }
  }

  /// The base as open_base gives it, without its bytes.
  Decoder make(const DecoderConfig& config, LayerRange layers, const LayerSharding* sharding,
               const ExpertExchange* experts, RankContext& rank) const {
    const MemoryPool::Use use(rank.pool, MemoryUse::base);
    const auto& device = dynamic_cast<const MetaDevice&>(rank.pool.device());
    const ParameterMaker parameter = [&](const std::string& name, const Shape& shape) {
      const bool wide = is_f32(config.names, name, shape);
      const bool grown = config.vocab_size > rows_ && shape.front() == config.vocab_size;  // resize_vocabulary
      const Tensor value = wide || grown || widened(name)
                               ? Tensor::empty(rank.pool, shape, wide ? DType::f32 : dtype(name), name)
                               : device.mapped(shape, dtype(name));
      return std::make_shared<Parameter>(Parameter{.name = name, .value = value, .gradient = {}});
    };
    const LinearWeightMaker dense = dense_maker(config, parameter);
    const LinearWeightMaker linear = [&](const std::string& module,
                                         const Shape& shape) -> std::unique_ptr<LinearWeight> {
      const std::string weight = weight_name(module, shape);
      if (!is_packed(config, weight, shape)) return dense(module, shape);
      QuantizedMatrix matrix = mxfp4_ ? plan_mxfp4(shape, module) : plan_quantized(shape, DType::bf16, codec_, 0);
      if (!in_file_) Tensor::empty(rank.pool, {std::min(element_count(shape), kQuantizedAtOnce)}, DType::f32);
      if (widened(weight)) Tensor::empty(rank.pool, shape, DType::bf16);
      for (Tensor* of : {&matrix.packed, &matrix.absmax, &matrix.exponents, &matrix.absmax_codes, &matrix.nested_absmax,
                         &matrix.nested_map}) {
        if (of->defined() && !of->has_bytes()) {
          *of = in_file_ ? device.mapped(of->shape(), of->dtype()) : Tensor::empty(rank.pool, of->shape(), of->dtype());
        }
      }
      return std::make_unique<Nf4Weight>(weight, matrix, std::vector<NamedTensor>(), matrix.matrices);
    };
    return Decoder(config, linear, parameter, rank, layers, sharding, experts);
  }

 private:
  // The headers of the files know it, if they are there.
  bool is_packed(const DecoderConfig& config, const std::string& weight, const Shape& shape) const {
    if (mxfp4_) return shape.size() == 3;
    if (in_file_ && checkpoint_) return is_quantized(*checkpoint_, stored_weight_name(*checkpoint_, weight));
    return skip_ && !skip_->skips(module_of_weight(weight)) && first_layer_of_block(config, weight) < 0;
  }

  // 8-bit floats, which become bf16 in memory.
  bool widened(const std::string& name) const {
    return checkpoint_ && is_fp8(*checkpoint_, stored_weight_name(*checkpoint_, name));
  }

  DType dtype(const std::string& name) const {
    const Tensor stored = checkpoint_ ? checkpoint_->find(stored_weight_name(*checkpoint_, name)) : Tensor();
    if (stored && stored.dtype() == DType::f8_e4m3) return DType::bf16;
    return stored && (stored.dtype() == DType::f32 || stored.dtype() == DType::f16) ? stored.dtype() : dense_;
  }

  int64_t rows_;  // of embedding and head in the files
  QuantizeOptions codec_;
  std::optional<SkipRule> skip_;
  std::optional<CheckpointDir> checkpoint_;
  bool in_file_ = false, mxfp4_ = false;
  DType dense_ = DType::bf16;
};

// A sample has a row of 24 bytes, and a place in the order of an epoch: 28, and 44 more while the order is made.
constexpr int64_t kDataTokenBytes = 4, kSampleBytes = 96;
// A piece of a long text has its place in the order alone.
constexpr int64_t kPieceBytes = 28;
// What reading holds at most of a data set that is mapped from data.cache.
constexpr int64_t kMappedDataBytes = int64_t{16} << 20;

int64_t bytes_of(const Dataset& data, int64_t max_length) {
  const int64_t tokens = data.report().tokens, pieces = data.has_text() ? tokens / max_length : 0;
  const int64_t bytes = kDataTokenBytes * tokens + kSampleBytes * data.size() + kPieceBytes * pieces;
  return data.scratch().empty() ? bytes : std::min(bytes, kMappedDataBytes);
}

// A guess before the file is read: 2 characters of text a token; 5 of a file of ids, twice as many where the labels are
// written too. Compressed files hold three times their bytes, Parquet files twice.
int64_t guessed_bytes(const fs::path& data) {
  std::string start(size_t{64} << 10, '\0');
  std::ifstream file(data, std::ios::binary);
  file.read(start.data(), std::ssize(start));
  start.resize(static_cast<size_t>(file.gcount()));
  std::error_code ignored;
  const auto size = static_cast<double>(start.empty() ? 0 : fs::file_size(data, ignored));
  const std::string type = data.extension();
  if (type == ".gz" || type == ".zst") return std::llround(3 * 2 * size);
  if (type == ".parquet") return std::llround(2 * 2 * size);
  const auto has = [&](const char* name) { return start.find(name) != std::string::npos; };
  const double of_byte = !has("\"input_ids\"") ? 2 : has("\"labels\"") ? 0.4 : 0.8;
  const auto records = static_cast<double>(std::ranges::count(start, '\n'));
  const double of_start = records / static_cast<double>(std::max<size_t>(1, start.size()));
  return std::llround((of_byte + kSampleBytes * of_start) * size);
}

// Data that are not there yet count nothing.
int64_t guessed_bytes(const std::vector<DataSource>& sources, DataSplit split) {
  int64_t bytes = 0;
  for (const DataSource& source : sources) {
    try {
      for (const DataFile& file : find_data_files({source}, split)) bytes += guessed_bytes(file.path);
    } catch (const InputError&) {
      continue;
    }
  }
  return bytes;
}

// data: what a run has read of them, or null.
int64_t data_bytes(const Recipe& recipe, const TrainingData* data) {
  const auto held = [&](const Batches& part) { return bytes_of(part.dataset(), recipe.data.max_length); };
  if (data) return held(data->train()) + (data->has_eval() ? held(data->eval()) : 0);
  const std::string& answers = recipe.objective.rollout.file;
  const auto train = answers.empty() ? recipe.data.train : std::vector<DataSource>{{.path = answers}};
  const int64_t bytes = guessed_bytes(train, DataSplit::train) + guessed_bytes(recipe.data.eval, DataSplit::eval);
  return recipe.data.cache.empty() ? bytes : std::min(bytes, kMappedDataBytes);
}

// What a tokenizer holds for a token: its text, its id by the text, its merge.
constexpr int64_t kTokenBytes = 160;
// What it is parsed from besides: BPE, or Unigram.
constexpr int64_t kParsedTokenBytes = 220;
// What encoding holds at most besides: records that are encoded together, words seen before. Little data need less.
constexpr int64_t kEncodingBytes = int64_t{20} << 20, kEncodingOfData = 4;

bool trains_tokenizer(const Recipe& recipe) { return recipe.pretrains() && recipe.model.tokenizer.empty(); }

// data: what a run has read with it, or null.
int64_t tokenizer_size(const Recipe& recipe, int64_t model_rows, const TrainingData* data) {
  if (data) return data->tokenizer_size();
  return trains_tokenizer(recipe) ? model_rows : tokenizer_vocab_size(tokenizer_path_of(recipe));
}

// Of the tokenizer where it is kept, for answers that are drawn, or trained.
int64_t tokenizer_bytes(const Recipe& recipe, int64_t tokens) {
  const bool keeps = recipe.train.samples > 0 || recipe.has_rollouts();
  return (trains_tokenizer(recipe) ? kTokenizerTraining : 0) + (keeps ? kTokenBytes * tokens : 0);
}

ModelMaker maker_of(const Recipe& recipe, const std::optional<AdapterRecipe>& of,
                    const std::shared_ptr<const StoredBase>& base) {
  std::optional<AdapterOptions> adapter;
  if (of) adapter = planned_adapter(*of);
  if (of && of->path.empty() && takes_from_base(of->options.init_lora_weights)) {
    adapter->init_lora_weights = of->options.init_lora_weights;  // its weights are copied
  }
  return [adapter, base, pretrains = recipe.pretrains(), int8 = recipe.model.int8()](
             const DecoderConfig& config, LayerRange range, const LayerSharding* sharding,
             const ExpertExchange* experts, RankContext& rank) {
    if (pretrains) return random_decoder(config, rank.seed, rank, range, sharding, experts);
    Decoder model = base->make(config, range, sharding, experts, rank);
    if (int8) use_int8(model, rank);
    if (!adapter) return model;
    AdapterOptions options = *adapter;
    if (options.layers_to_transform) {
      std::erase_if(*options.layers_to_transform, [&](int64_t layer) { return layer >= config.layers; });
    }
    attach_adapter(model, options, rank);
    return model;
  };
}

// Whether a run of these degrees is not refused.
bool takes(Recipe recipe, const DecoderConfig& in_files, int64_t rows, const MeshShape& degrees) {
  recipe.parallel.pipeline = degrees.pipeline;
  recipe.parallel.tensor = degrees.tensor;
  try {
    detail::check_tensor_parallel({}, recipe);
    plan_adapter(recipe, in_files, rows);
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

PlanJob job_of(const Recipe& asked, const DecoderConfig& in_files, bool look, const TrainingData* data = nullptr) {
  Recipe recipe = asked;  // and the rows of tokens that were added to the tokenizer
  DecoderConfig config = in_files;
  const int64_t tokens = look ? tokenizer_size(recipe, in_files.vocab_size, data) : 0;
  int64_t rows = in_files.vocab_size;
  if (look && !recipe.pretrains()) {
    config.vocab_size = rows = rows_for_tokenizer(tokenizer_path_of(recipe), tokens, in_files.vocab_size);
    check_vocabularies(recipe, rows);
    const std::optional<AdapterPlan> plan = plan_adapter(recipe, in_files, rows);  // refuses what a run would
    if (recipe.adapter) recipe.adapter = with_added_tokens(*recipe.adapter, in_files, rows);
    if (plan) config.vocab_size = plan->vocab_size;
  }
  check_experts(recipe, config);
  const auto base = std::make_shared<const StoredBase>(recipe.model, in_files, look);
  PlanJob job;
  job.takes = [asked, in_files, rows](const MeshShape& degrees) { return takes(asked, in_files, rows, degrees); };
  job.everything = !recipe.adapter;
  job.make_model = maker_of(recipe, recipe.adapter, base);
  job.model = plan_model(config, job.make_model, job.everything);
  int64_t positions = config.position_limit();  // of all that read the documents
  if (const ModelRecipe teacher = teacher_of(recipe); !teacher.path.empty()) {
    const DecoderConfig taught = model_config(teacher);
    positions = std::min(positions, taught.position_limit());
    const auto stored = std::make_shared<const StoredBase>(teacher, taught, look);
    job.make_teacher = [stored, taught](RankContext& rank) { return stored->make(taught, {}, nullptr, nullptr, rank); };
  }
  if (recipe.objective.type == ObjectiveType::ppo) {
    const ModelRecipe value = value_base(recipe);
    const DecoderConfig valued = model_config(value);
    std::optional<AdapterRecipe> adapter = value_adapter(asked);  // which has rows of its own, and no head
    if (adapter) adapter = with_added_tokens(*adapter, valued, config.vocab_size);
    const auto stored = std::make_shared<const StoredBase>(value, valued, look);
    job.make_value = [make = maker_of(recipe, adapter, stored)](const DecoderConfig& policy, LayerRange range,
                                                                const LayerSharding* sharding,
                                                                const ExpertExchange* experts, RankContext& rank) {
      return make(with_score_head(policy, 1, false), range, sharding, experts, rank);
    };
  }
  if (keeps_reference(recipe)) {
    const ModelRecipe reference = reference_base(recipe);
    const auto stored = std::make_shared<const StoredBase>(reference, model_config(reference), look);
    job.make_reference = maker_of(recipe, reference_adapter(recipe), stored);
  }
  job.block = planned_block(recipe, config);
  const std::vector<RewardRecipe> rewards = recipe.all_rewards();
  for (size_t i = 0; i < rewards.size(); ++i) {
    if (rewards[i].type != RewardRecipe::Type::model) continue;
    const ModelRecipe judge = reward_base(rewards[i], recipe.model);
    const DecoderConfig scored = reward_config(judge, reward_key(recipe, i));
    std::optional<AdapterRecipe> scorer;
    if (!judge.score->adapter.empty()) scorer.emplace().path = judge.score->adapter;
    const ModelMaker make = maker_of(recipe, scorer, std::make_shared<const StoredBase>(judge, scored, look));
    job.block.scorers.emplace_back(
        [make, scored](RankContext& rank) { return make(scored, {}, nullptr, nullptr, rank); });
  }
  job.optimizer = recipe.optimizer.type;
  job.gradient_sum = *recipe.train.gradient_sum;
  job.compute_dtype = recipe.model.dtype();
  job.objective = recipe.objective;
  job.tokens = recipe.train.microbatch_size * recipe.data.max_length;
  job.document_length = std::min(recipe.data.max_length, positions);
  if (recipe.has_rollouts()) {
    job.answer_tokens = std::min(recipe.objective.rollout.max_new_tokens, job.document_length - 1);
    if (shares_prompts(recipe, config)) job.answers_together = recipe.objective.rollout.completions;
    job.tokens = recipe.train.microbatch_size * job.document_length;
  }
  // Packed or not: a pair of answers of max_length each is a sequence of its own.
  if (is_pairwise(recipe.objective.type)) job.tokens = 2 * recipe.train.microbatch_size * job.document_length;
  job.accumulate = recipe.train.accumulate;
  const Interval& saves = recipe.train.save_every;  // by time: a run is taken to last longer
  const int64_t steps = recipe.train.steps.value_or(std::numeric_limits<int64_t>::max());
  job.saves_midway = steps > 1 && (saves.seconds > 0 || (saves.steps > 0 && saves.steps < steps));
  if (look) {
    const int64_t read = data_bytes(recipe, data), encoding = std::min(kEncodingBytes, kEncodingOfData * read);
    job.program_bytes = tokenizer_bytes(recipe, tokens) + read;
    job.reading_bytes = kTokenBytes * tokens + std::max(kParsedTokenBytes * tokens, encoding + read);
  }
  return job;
}

}  // namespace

AdapterOptions planned_adapter(const AdapterRecipe& of) {
  AdapterOptions options = of.path.empty() ? of.options : read_peft_directory(of.path).options;
  options.lora_dropout = of.options.lora_dropout;
  options.init_lora_weights = LoraInit::standard;
  return options;
}

PlanJob plan_job(const Recipe& recipe) {
  return job_of(recipe, model_config(with_all_directories(recipe).model), true);
}

PlanJob plan_job(const Recipe& recipe, const TrainingData& data) {
  const Recipe planned = data.planned(recipe);
  return job_of(planned, model_config(with_all_directories(planned).model), true, &data);
}

PlanJob plan_job(const Recipe& recipe, const DecoderConfig& config) { return job_of(recipe, config, false); }

PlanLayout plan_layout(const Recipe& recipe) {
  const ParallelRecipe& parallel = recipe.parallel;
  PlanLayout layout;
  layout.mesh = parallel.mesh();
  layout.zero = parallel.zero;
  layout.shard_adapters = parallel.shard_adapters;
  layout.reshard_after_forward = parallel.reshard_after_forward;
  layout.prefetch = parallel.prefetch;
  layout.wire_dtype = parallel.wire_dtype;
  layout.schedule = parallel.schedule;
  layout.in_flight = parallel.microbatches;
  layout.stages = parallel.stages;
  layout.offload = parallel.offload_activations;
  layout.recompute = recipe.train.gradient_checkpointing.value_or(Recompute::none);
  return layout;
}

}  // namespace nibble
