#include "nibble/recipes/config/recipe_fields.h"

#include "nibble/recipes/config/recipe_values.h"

namespace nibble::detail {

namespace {

constexpr double kForever = 1e9;

RecipeField stages_field() {
  const std::string values = "a list of integers from 1";
  RecipeField field =
      bare_field("parallel.stages", values, {{"type", "array"}, {"items", {{"type", "integer"}, {"minimum", 1}}}},
                 "layers of each pipeline stage (placed so that the slowest stage is fastest)");
  field.read = [values](Recipe& recipe, const Json& value, const std::string& place) {
    if (!value.is_array()) refuse_value(place, values, value);
    recipe.parallel.stages.clear();
    for (const Json& layers : value)
      recipe.parallel.stages.push_back(read_integer(layers, place, values, 1, kLargestCount));
  };
  field.write = [](Recipe& recipe) -> Json {
    return recipe.parallel.stages.empty() ? Json(nullptr) : Json(recipe.parallel.stages);
  };
  return field;
}

// A degree; "auto" is kept as 0.
RecipeField degree_field(std::string name, Place<int64_t> at, std::string meaning) {
  const std::string values = "integer from 1 to 4096 | auto";
  RecipeField field = bare_field(
      std::move(name), values,
      {{"type", {"integer", "string"}}, {"minimum", 1}, {"maximum", 4096}, {"pattern", "^auto$"}}, std::move(meaning));
  field.read = [=](Recipe& recipe, const Json& value, const std::string& place) {
    at(recipe) = value == "auto" ? 0 : read_integer(value, place, values, 1, 4096);
  };
  field.write = [at](Recipe& recipe) -> Json { return at(recipe) == 0 ? Json("auto") : Json(at(recipe)); };
  return field;
}

}  // namespace

bool RecipeField::accepts(const std::string& type) const {
  if (!schema.contains("type")) return schema.contains("enum") && type == "string";
  const Json& types = schema["type"];
  if (types.is_string()) return types == type;
  return std::find(types.begin(), types.end(), type) != types.end();
}

const std::vector<RecipeField>& recipe_fields() {
  static const std::vector<RecipeField> fields = [] {
    std::vector<RecipeField> all;
    for (auto section : {model_fields, adapter_fields, objective_fields, rollout_fields, reward_fields, data_fields,
                         train_fields, optimizer_fields, parallel_fields, output_fields}) {
      for (RecipeField& field : section()) all.push_back(std::move(field));
    }
    return all;
  }();
  return fields;
}

std::vector<RecipeField> model_fields() {
  // What the paths hold is compared by fingerprints.
  return {
      free_to_change(text_field(
          "model.path", "a directory or an ID in the Hugging Face cache",
          [](Recipe& r) -> std::string& { return r.model.path; },
          "the model in Hugging Face's layout, 16/32-bit or bitsandbytes 4-bit")),
      free_to_change(text_field(
          "model.init", "a config.json", [](Recipe& r) -> std::string& { return r.model.init; },
          "instead of model.path: start from random weights of this shape")),
      free_to_change(text_field(
          "model.tokenizer", "a directory or file", [](Recipe& r) -> std::string& { return r.model.tokenizer; },
          "tokenizer (the model's own; pretraining trains one on its data)")),
      choice_field<std::optional<QuantType>>(
          "model.quantize", {{"none", std::nullopt}, {"nf4", QuantType::nf4}, {"fp4", QuantType::fp4}},
          [](Recipe& r) -> std::optional<QuantType>& { return r.model.quantize; },
          "4-bit type to quantize the base to while it loads; a 4-bit directory is used as it is"),
      flag_field(
          "model.double_quant", [](Recipe& r) -> bool& { return r.model.double_quant; },
          "whether the scales are quantized too"),
      integer_field(
          "model.block_size", 32, 4096, [](Recipe& r) -> int64_t& { return r.model.block_size; },
          "weights that share one scale: 32, 64, ..., 4096"),
      optional_texts_field(
          "model.skip_modules",
          [](Recipe& r) -> std::optional<std::vector<std::string>>& { return r.model.skip_modules; },
          "modules that are not quantized (as bitsandbytes: the head)"),
      optional_number_field(
          "model.router_aux_loss_coef", 0,
          [](Recipe& r) -> std::optional<double>& { return r.model.router_aux_loss_coef; },
          "share of the experts' load-balancing loss in the loss, over all tokens of a step; 0: off (config.json's "
          "where "
          "it says output_router_logits)"),
      choice_field<std::optional<ComputeDtype>>(
          "model.compute_dtype",
          {{"bf16", ComputeDtype::bf16}, {"f32", ComputeDtype::f32}, {"int8", ComputeDtype::int8}},
          [](Recipe& r) -> std::optional<ComputeDtype>& { return r.model.compute_dtype; },
          "precision of matrix products (bf16 where the CPU has it); int8: those with the frozen base of an adapter in "
          "8 bits, the others as by default"),
      choice_field<std::optional<ops::Bf16Products>>(
          "model.bf16_products", {{"bf16", ops::Bf16Products::bf16}, {"f32", ops::Bf16Products::f32}},
          [](Recipe& r) -> std::optional<ops::Bf16Products>& { return r.model.bf16_products; },
          "arithmetic of products of bf16 numbers: the CPU's instructions for them, or those for f32, which some CPUs "
          "are faster at (bf16 where model.compute_dtype is named; else f32 where that is measured to be 1.3 times as "
          "fast, and a run goes on as it began)"),
  };
}

std::vector<RecipeField> parallel_fields() {
  std::vector<RecipeField> fields = {
      degree_field(
          "parallel.pipeline", [](Recipe& r) -> int64_t& { return r.parallel.pipeline; },
          "stages that hold the layers one after another"),
      degree_field(
          "parallel.tensor", [](Recipe& r) -> int64_t& { return r.parallel.tensor; },
          "ranks that compute every layer together, each with some of its heads and columns"),
      degree_field(
          "parallel.shard", [](Recipe& r) -> int64_t& { return r.parallel.shard; },
          "ranks that share one copy's bytes and work on different microbatches (FSDP)"),
      degree_field(
          "parallel.replicate", [](Recipe& r) -> int64_t& { return r.parallel.replicate; },
          "copies of the model that work on different microbatches (data parallel)"),
      integer_field(
          "parallel.experts", 1, 4096, [](Recipe& r) -> int64_t& { return r.parallel.experts; },
          "of the ranks of parallel.replicate x parallel.shard, how many share the experts of a mixture: each holds "
          "some of every layer's, and tokens travel to those they chose"),
      integer_field(
          "parallel.zero", 1, 3, [](Recipe& r) -> int64_t& { return r.parallel.zero; },
          "what parallel.shard cuts: 1 optimizer state, 2 and gradients, 3 and weights"),
      flag_field(
          "parallel.shard_adapters", [](Recipe& r) -> bool& { return r.parallel.shard_adapters; },
          "cut adapters too; else only the base is cut and every rank has the whole adapters"),
      flag_field(
          "parallel.reshard_after_forward", [](Recipe& r) -> bool& { return r.parallel.reshard_after_forward; },
          "drop a block's gathered weights after each use; false: keep them until the update"),
      integer_field(
          "parallel.prefetch", 0, 16, [](Recipe& r) -> int64_t& { return r.parallel.prefetch; },
          "blocks whose weights are gathered ahead"),
      choice_field<DType>(
          "parallel.wire_dtype", {{"f32", DType::f32}, {"bf16", DType::bf16}},
          [](Recipe& r) -> DType& { return r.parallel.wire_dtype; }, "precision of gradients on the wire"),
      number_field(
          "parallel.timeout_seconds", 0.1, kForever, [](Recipe& r) -> double& { return r.parallel.timeout_seconds; },
          "how long a rank waits for another before the ranks call the roll"),
      choice_field<PipelineSchedule>(
          "parallel.schedule",
          {{"naive", PipelineSchedule::naive},
           {"gpipe", PipelineSchedule::gpipe},
           {"1f1b", PipelineSchedule::one_f_one_b}},
          [](Recipe& r) -> PipelineSchedule& { return r.parallel.schedule; }, "order of a pipeline's work"),
      integer_field(
          "parallel.microbatches", 0, kLargestCount, [](Recipe& r) -> int64_t& { return r.parallel.microbatches; },
          "in flight in one pipeline pass; 0 = all of a step"),
      stages_field(),
      flag_field(
          "parallel.offload_activations", [](Recipe& r) -> bool& { return r.parallel.offload_activations; },
          "what blocks keep for the backward pass waits in a temporary file"),
      text_field(
          "parallel.offload_directory", "a directory",
          [](Recipe& r) -> std::string& { return r.parallel.offload_directory; },
          "where that file lies (output.dir), best on a disk of the rank's own host"),
  };
  // A run may go on in another layout.
  for (RecipeField& field : fields) field.decides_bits = false;
  return fields;
}

std::vector<RecipeField> output_fields() {
  std::vector<RecipeField> fields = {
      text_field(
          "output.dir", "a directory", [](Recipe& r) -> std::string& { return r.output.dir; },
          "where the run writes; one run per directory"),
      text_field(
          "output.resume", "auto | never | a checkpoint's directory",
          [](Recipe& r) -> std::string& { return r.output.resume; },
          "auto: continue from the newest valid checkpoint, if there is one"),
      integer_field(
          "output.keep_last", 1, kLargestCount, [](Recipe& r) -> int64_t& { return r.output.keep_last; },
          "newest checkpoints to keep"),
      flag_field(
          "output.keep_best", [](Recipe& r) -> bool& { return r.output.keep_best; },
          "keep the checkpoint with the lowest evaluation loss too, and export its weights"),
      flag_field(
          "output.force", [](Recipe& r) -> bool& { return r.output.force; },
          "replace what an earlier run left, or continue it although settings changed"),
  };
  for (RecipeField& field : fields) field.decides_bits = false;
  return fields;
}

}  // namespace nibble::detail
