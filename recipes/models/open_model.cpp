#include "nibble/recipes/models/open_model.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "nibble/adapters/peft/adapter_names.h"
#include "nibble/adapters/target_modules.h"
#include "nibble/core/base/cpu_features.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/files/list_directory.h"
#include "nibble/core/io/hash.h"
#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/io/hub/fp8_tensor.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/io/json/mistaken_file.h"
#include "nibble/core/models/families/expert_tensors.h"
#include "nibble/core/models/families/families.h"
#include "nibble/core/models/load.h"
#include "nibble/core/models/tensor_source.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/int8/int8_product.h"
#include "nibble/parallel/experts/expert_parallel.h"
#include "nibble/parallel/tensor/tensor_shard.h"
#include "nibble/quant/bnb_layout.h"
#include "nibble/quant/load_quantized.h"
#include "nibble/quant/quantization_config.h"
#include "nibble/recipes/models/arithmetic.h"
#include "nibble/recipes/models/continued_adapter.h"
#include "nibble/recipes/models/tokenizers.h"
#include "nibble/recipes/preferences/reference_model.h"
#include "nibble/recipes/reinforcement/value_model.h"

namespace nibble {

namespace {

// The weights of a 16- or 32-bit directory as they were before they were quantized on the way.
OriginalWeight original_weights(const ModelRecipe& base, RankContext& rank) {
  if (!base.quantize) return {};
  const auto checkpoint = std::make_shared<CheckpointDir>(open_checkpoint(base.path));
  const DecoderConfig config = read_decoder_config(base.path);
  return [checkpoint, turned = config.transposed_linears, head = config.names.head, &rank](const std::string& module) {
    const Tensor stored = read_plain(*checkpoint, stored_weight_name(*checkpoint, module + ".weight"), rank.pool);
    Tensor wide = Tensor::empty(rank.pool, stored.shape(), DType::f32, module);
    ops::cast(stored, wide);
    return turned && module != head ? transposed(wide, rank.pool) : wide;
  };
}

/// Rows of the score head that a PEFT directory brings, 0: none.
int64_t labels_of(const std::string& adapter) {
  if (adapter.empty()) return 0;
  const Tensor score = read_peft_directory(adapter).find(std::string(kScoreHead) + ".weight");
  return score && score.rank() == 2 ? score.dim(0) : 0;
}

// The head that is asked for: the files' own, or a score head, theirs or in the place of theirs.
DecoderConfig with_asked_head(DecoderConfig config, const ModelRecipe& base) {
  if (!base.score) {
    if (config.score_labels == 0) return config;
    throw InputError(base.path, "ends in a score head, which says nothing of next tokens",
                     "use nibble score, or an objective of reward or classification");
  }
  int64_t labels = base.score->labels;
  if (config.score_labels > 0) {
    if (labels > 0 && labels != config.score_labels) {
      throw InputError(base.path,
                       "has a score head of " + count_text(config.score_labels, "label") + " where " +
                           std::to_string(labels) + (labels == 1 ? " is" : " are") + " asked for",
                       "start from the causal model, or name its own number");
    }
    return config;
  }
  if (labels == 0) labels = labels_of(base.score->adapter);
  if (labels == 0) {
    throw UsageError("has no score head that would say how many labels there are",
                     "name a reward model or a classifier; a recipe of classification gives objective.num_labels",
                     base.score->adapter.empty() ? base.path : base.score->adapter);
  }
  return with_score_head(std::move(config), labels, false);
}

TextSource continued_text(const Recipe& recipe) {
  return find_text_source(recipe.model.path, recipe.adapter ? recipe.adapter->path : "", recipe.data.chat_template);
}

}  // namespace

DType compute_dtype_of(const std::string& name) {
  ModelRecipe model;
  if (name == "f32") model.compute_dtype = ComputeDtype::f32;
  if (name == "bf16") model.compute_dtype = ComputeDtype::bf16;
  if (!model.compute_dtype && name != "auto") {
    throw UsageError("compute dtype " + name + " is not known", "use f32, bf16 or auto");
  }
  return model.dtype();
}

const Recipe& with_all_directories(const Recipe& recipe) {
  const ObjectiveOptions& objective = recipe.objective;
  std::vector<std::pair<std::string, std::string>> named = {
      {"model.path", recipe.model.path},
      {"adapter.path", recipe.adapter ? recipe.adapter->path : ""},
      {"objective.reference", names_reference_directory(objective) ? objective.reference : ""},
      {"objective.teacher_model_name_or_path", objective.teacher_model_name_or_path},
      {"objective.value_model", objective.value_model},
      {"objective.value_adapter", objective.value_adapter},
      {"objective.reward_model", objective.reward_model}};
  for (size_t i = 0; i < recipe.rewards.size(); ++i) {
    named.emplace_back("rewards[" + std::to_string(i) + "].path", recipe.rewards[i].path);
  }
  for (const auto& [key, path] : named) {
    std::error_code error;
    const std::filesystem::file_status status = std::filesystem::status(path, error);
    if (path.empty() || is_directory(status)) continue;
    const std::string place = key + ": " + shown_path(path).string();
    if (status.type() == std::filesystem::file_type::not_found) {
      throw IoError(place, "no such directory", missing_path_remedy(path, ""));
    }
    if (error) throw IoError(place, error.message(), "check the path and its device");
    if (path.ends_with(".gguf")) throw InputError(place, "is a GGUF file", kImportRemedy);
    throw InputError(place, "is a file", "give the directory that it is in");
  }
  return recipe;
}

DecoderConfig model_config(const ModelRecipe& base) {
  DecoderConfig config =
      base.init.empty() ? read_decoder_config(base.path) : parse_decoder_config(read_text_file(base.init), base.init);
  config = with_asked_head(std::move(config), base);
  if (base.router_aux_loss_coef) {
    if (!config.experts) {
      throw UsageError("the model has no experts", "leave it out", "model.router_aux_loss_coef");
    }
    config.router_aux_loss_coef = static_cast<float>(*base.router_aux_loss_coef);
  }
  return config;
}

std::string tokenizer_path_of(const Recipe& recipe, const Observer& observer) {
  if (!recipe.model.tokenizer.empty()) return recipe.model.tokenizer;
  const TextSource source = continued_text(recipe);
  for (const std::string& note : source.notes) observer.message("note: " + note);
  return source.tokenizer;
}

Recipe with_adapters_template(Recipe recipe, const Observer& observer) {
  if (!recipe.model.tokenizer.empty()) return recipe;
  TextSource source = continued_text(recipe);
  if (source.tokenizer != recipe.model.path || source.chat_template == recipe.data.chat_template) return recipe;
  for (const std::string& note : source.notes) observer.message("note: " + note);
  recipe.data.chat_template = std::move(source.chat_template);
  return recipe;
}

AttachedAdapter open_adapter(Decoder& model, const ModelRecipe& base, const AdapterRecipe& recipe, RankContext& rank,
                             const Observer& observer) {
  AttachedAdapter attached;
  if (recipe.path.empty()) {
    AdapterOptions options = recipe.options;
    // As Transformers takes it, a path starts at the directory of whoever loads the adapter: only a whole one serves
    // all.
    options.base_model = std::filesystem::absolute(base.path).string();
    attached = attach_adapter(model, options, rank, original_weights(base, rank));
  } else {
    PeftAdapter adapter = read_peft_directory(recipe.path);
    adapter.options.lora_dropout = recipe.options.lora_dropout;  // how to train is the recipe's to say
    attached = load_adapter(model, adapter, true, rank);
  }
  for (const std::string& note : attached.notes) observer.message("note: " + note);
  return attached;
}

AdapterRecipe with_added_tokens(AdapterRecipe recipe, const DecoderConfig& config, int64_t rows) {
  if (rows <= config.vocab_size || !recipe.path.empty()) return recipe;
  AdapterOptions& options = recipe.options = in_file_names(std::move(recipe.options), config);
  const auto add = [&](const std::string& table) {
    if (is_module_to_save(options, table)) return;
    auto& tables = options.trainable_token_indices;
    const auto names_it = [&](const auto& entry) {
      return entry.first.empty() ? table == config.names.embedding : table.ends_with(entry.first);
    };
    auto entry = std::ranges::find_if(tables, names_it);
    if (entry == tables.end()) entry = tables.insert(tables.end(), {table, {}});
    if (entry->first.empty()) entry->first = table;  // PEFT knows the embedding without its name only where it is alone
    for (int64_t id = config.vocab_size; id < rows; ++id) {
      if (!std::ranges::count(entry->second, id)) entry->second.push_back(id);
    }
  };
  add(config.names.embedding);
  if (!config.tied_head) add(config.names.head);
  return recipe;
}

namespace {

// A bias of B is merged into the bias of its Linear, by PEFT too.
void refuse_bias_without_place(const DecoderConfig& config, const AdapterPlan& plan) {
  LocalRank rank;
  plan_decoder(config, rank.context()).visit_linears([&](Linear& linear) {
    if (linear.bias() || !std::ranges::count(plan.modules, linear.name())) return;
    throw UsageError("no merge could keep what it learns for " + linear.name() + ", which has no bias",
                     "leave it out, or choose target_modules with a bias", "adapter.lora_bias");
  });
}

// Every rank has the adapters of all experts, of single ones too; weights have only some.
void check_spread_experts(const DecoderConfig& config, const AdapterPlan& plan, const AdapterOptions& options) {
  const auto refuse = [](const std::string& what, const std::string& remedy) {
    throw UsageError(what, remedy, "parallel.experts");
  };
  std::map<std::pair<std::string, int64_t>, int64_t> saved;  // Linears of a layer's experts
  bool adapted = false;
  for (const std::string& linear : plan.linears) {
    const std::optional<ExpertPart> part = expert_part(config, linear);
    if (!part) continue;
    const bool alone = plan.fully_trained.contains(linear + ".weight");
    if (alone) ++saved[{part->tensor, part->first_output}];
    if (!std::ranges::count(plan.modules, linear)) continue;
    adapted = true;
    const bool reads = takes_from_base(options.init_lora_weights) || options.init_lora_weights == LoraInit::loftq;
    if (options.use_dora || reads || options.lora_dropout > 0)
      refuse("the adapter of " + linear + " has dropout, DoRA or a start taken from a weight that only some ranks have",
             "name the tensors of all experts in adapter.target_parameters, or leave it out");
  }
  if (adapted && !saved.empty()) {  // the norm counts weights of experts that stand together
    refuse("the adapter has factors on some Linears of experts and trains the weights of others",
           "choose one of the two for all Linears of experts, or leave it out");
  }
  for (const auto& [of, count] : saved) {
    if (count == config.experts->experts) continue;
    refuse("the adapter trains the weights of " + std::to_string(count) + " of the " +
               std::to_string(config.experts->experts) + " experts in " + of.first + ", and ranks share all of them",
           "name all experts in adapter.modules_to_save, or leave it out");
  }
}

// Entries that fit no module would skip nothing.
void check_skipped(const ModelRecipe& base, const DecoderConfig& config) {
  if (!base.quantize || !base.skip_modules) return;
  std::vector<std::string> modules = {config.names.head, kScoreHead};
  LocalRank rank;
  Decoder model = plan_decoder(config, rank.context());
  model.visit_linears([&](Linear& linear) { modules.push_back(linear.name()); });
  model.visit([&](const Parameter& parameter) { modules.push_back(module_of_weight(parameter.name)); });
  if (holds_weights(base.path)) {
    const CheckpointDir checkpoint = open_checkpoint(base.path);
    for (const std::string& tensor : checkpoint.names()) modules.push_back(module_of_weight(tensor));
  }
  SkipRule(base.skip_modules, {}).require_used(modules, "model.skip_modules");
}

// The policy, and models in directories of their own that lie on its ranks as it does.
std::vector<DecoderConfig> laid_out(const Recipe& recipe, const DecoderConfig& policy) {
  std::vector<DecoderConfig> all = {policy};
  if (names_reference_directory(recipe.objective)) all.push_back(model_config(reference_base(recipe)));
  if (!recipe.objective.value_model.empty()) all.push_back(model_config(value_base(recipe)));
  return all;
}

}  // namespace

void check_experts(const Recipe& recipe, const DecoderConfig& config) {
  check_experts(config, recipe.parallel.experts);
  if (recipe.parallel.experts == 1 || recipe.adapter || recipe.optimizer.type != OptimizerKind::adamw8bit) return;
  check_expert_blocks(config, recipe.parallel.experts, [](const std::string&) { return true; });
}

std::optional<AdapterPlan> plan_adapter(const Recipe& recipe, DecoderConfig config, int64_t rows) {
  const ModelSplit split{recipe.parallel.pipeline > 1, recipe.parallel.tensor > 1};
  if (rows > config.vocab_size && (split.stages || split.tensor)) {
    throw UsageError("tokens added to the tokenizer need " +
                         std::string(split.stages ? "embedding and head on one rank" : "full tables"),
                     "leave it out", split.stages ? "parallel.pipeline" : "parallel.tensor");
  }
  for (const DecoderConfig& one : split.stages || split.tensor ? laid_out(recipe, config) : std::vector{config}) {
    one.check_stages(!split.stages);
    if (split.tensor) tensor_shard(one, 0, static_cast<int>(recipe.parallel.tensor));  // refuses what cannot be
  }
  check_experts(recipe, config);
  check_skipped(recipe.model, config);
  if (!recipe.adapter && !recipe.pretrains() && has_vision_tower(config)) {
    throw UsageError("the model has a vision tower, which a full run would not write",
                     "add an adapter, or save the language model apart", recipe.model.path);
  }
  if (const std::string& value = recipe.objective.value_model;
      !recipe.adapter && !value.empty() && is_four_bit(value)) {
    throw UsageError("4-bit weights cannot be trained", "add an adapter section, or name a model in 16 bits", value);
  }
  if (!recipe.adapter) return std::nullopt;
  const AdapterRecipe adapter = with_added_tokens(*recipe.adapter, config, rows);
  const DecoderConfig base = config;
  config.vocab_size = rows;
  AdapterPlan plan;
  AdapterOptions options = adapter.options;
  if (adapter.path.empty()) {
    plan = plan_adapter(config, options, split);
    if (adapter.options.lora_bias) refuse_bias_without_place(config, plan);
  } else {
    const PeftAdapter stored = read_peft_directory(adapter.path);
    plan = plan_adapter(config, stored, split);
    check_continued(adapter, stored, base);
    options = stored.options;
  }
  check_reference(recipe.objective, plan.base_changed);
  if (recipe.parallel.experts == 1) return plan;
  check_spread_experts(config, plan, options);
  if (recipe.optimizer.type == OptimizerKind::adamw8bit) {
    check_expert_blocks(config, recipe.parallel.experts,
                        [&](const std::string& parameter) { return plan.fully_trained.contains(parameter); });
  }
  return plan;
}

void check_reference(const ObjectiveOptions& objective, bool base_changed) {
  if (!base_changed || !has_reference(objective) || objective.reference != "adapter_off") return;
  throw UsageError(
      "the base is not what it was once the adapter is on it (modules_to_save, biases, tokens of a continued adapter, "
      "or a start that is taken from its weights)",
      "set objective.reference to initial, or to the model's directory", "objective.reference");
}

ModelRecipe teacher_of(const Recipe& recipe) {
  ModelRecipe teacher;
  teacher.path = recipe.objective.teacher_model_name_or_path;
  return teacher;
}

void check_vocabularies(const Recipe& recipe, int64_t rows) {
  const DecoderConfig own = model_config(recipe.model);
  const auto check = [&](const ModelRecipe& model, const std::string& learner, const std::string& remedy) {
    const std::string& path = model.path;
    const auto refuse = [&](const std::string& what) { throw InputError(path, what, remedy); };
    const DecoderConfig config = model_config(model);
    const int64_t tokens = config.vocab_size;
    const auto theirs = find_tokenizer(path), ours = find_tokenizer(tokenizer_path_of(recipe));
    const bool may_have_more = learner == "policy" && theirs && ours;  // rows that no token has
    if (may_have_more ? tokens < rows : tokens != rows) {
      refuse("has a vocabulary of " + std::to_string(tokens) + " tokens, the " + learner + " of " +
             std::to_string(rows));
    }
    const int64_t head = config.output_vocab_size > 0 ? config.output_vocab_size : rows;
    const int64_t wanted = own.output_vocab_size > 0 ? own.output_vocab_size : rows;
    if (!model.score && (learner == "policy" ? head < wanted : head != wanted)) {
      refuse("has a head of " + std::to_string(head) + " rows, the " + learner + " of " + std::to_string(wanted));
    }
    if (!theirs || !ours) return;
    for (int32_t id = 0; id < std::min(theirs->vocab_size(), ours->vocab_size()); ++id) {
      if (theirs->token(id) == ours->token(id)) continue;
      refuse("has \"" + theirs->token(id) + "\" as token " + std::to_string(id) + ", the " + learner + " \"" +
             ours->token(id) + "\"");
    }
  };
  const ObjectiveOptions& objective = recipe.objective;
  if (!objective.teacher_model_name_or_path.empty()) {
    check(teacher_of(recipe), "student", "a teacher needs the student's vocabulary: choose one of its family");
  }
  if (has_reference(objective) && names_reference_directory(objective)) {
    check(reference_base(recipe), "policy",
          "objective.reference needs the policy's vocabulary: choose a model of its family");
  }
  if (!objective.value_model.empty()) {
    check(value_base(recipe), "policy",
          "objective.value_model needs the policy's vocabulary: choose a model of its family");
  }
}

Decoder open_base(const ModelRecipe& base, RankContext& rank, LayerRange layers, const LayerSharding* sharding,
                  const ExpertExchange* experts) {
  std::optional<QuantizeOnLoad> quantize;
  if (base.quantize) quantize = {{*base.quantize, base.double_quant, base.block_size}, base.skip_modules};
  LoadOptions options = load_quantized(rank, quantize);
  options.config = model_config(base);
  options.layers = layers;
  options.sharding = sharding;
  options.experts = experts;
  Decoder model = load_decoder(base.path, rank, options);
  if (base.int8()) use_int8(model, rank);
  return model;
}

void use_int8(Decoder& model, RankContext& rank) {
  if (rank.pool.device().has_bytes() && ops::int8_levels() == 0) {
    throw UsageError("this CPU (level " + std::string(isa_name(isa())) + ") has no products in 8 bits",
                     "use bf16 or f32", "model.compute_dtype");
  }
  model.set_int8(rank.pool);
}

Decoder open_model(const ModelRecipe& base, const std::string& adapter, Train train, RankContext& rank) {
  use_arithmetic(base);
  Decoder model = open_base(base, rank);
  if (!adapter.empty()) load_adapter(model, read_peft_directory(adapter), train == Train::adapter, rank);
  if (train == Train::everything) make_trainable(model, rank);
  return model;
}

std::string base_fingerprint(const std::string& path) {
  constexpr size_t kEnd = size_t{1} << 16;
  if (!std::filesystem::is_directory(path)) return hash_file(path).substr(0, 16);
  std::vector<std::filesystem::path> files;
  for (const auto& entry : list_directory(path)) {
    if (entry.path().extension() == ".safetensors" || entry.path().filename() == "config.json")
      files.push_back(entry.path());
  }
  std::ranges::sort(files);
  Hasher hasher;
  for (const std::filesystem::path& file : files) {
    const FileMap map(file.string());
    const std::span<const std::byte> bytes(map.data(), map.size());
    const uint64_t size = bytes.size();
    hasher.update(std::as_bytes(std::span(&size, 1)));
    hasher.update(bytes.first(std::min(kEnd, bytes.size())));
    hasher.update(bytes.last(std::min(kEnd, bytes.size())));
  }
  return hasher.hex().substr(0, 16);
}

}  // namespace nibble
