#include "nibble/recipes/config/recipe_fields.h"

#include "nibble/recipes/config/recipe_values.h"

namespace nibble::detail {

namespace {

constexpr double kForever = 1e9;

RecipeField stages_field() {
  const auto read = [](const Json& value, const std::string& place, const std::string& values) {
    return read_integers(value, place, values, 1);
  };
  return value_field("parallel.stages", "a list of integers from 1",
                     {{"type", "array"}, {"items", {{"type", "integer"}, {"minimum", 1}}}}, &ParallelRecipe::stages,
                     read, "layers of each pipeline stage (placed so that the slowest stage is fastest)", kNullIfEmpty);
}

// A degree; "auto" is kept as 0.
RecipeField degree_field(std::string name, int64_t ParallelRecipe::*at, std::string meaning) {
  const auto read = [](const Json& value, const std::string& place, const std::string& values) {
    return value == "auto" ? 0 : read_integer(value, place, values, 1, 4096);
  };
  const auto write = [](int64_t degree) { return degree == 0 ? Json("auto") : Json(degree); };
  return value_field(std::move(name), "integer from 1 to 4096 | auto",
                     {{"type", {"integer", "string"}}, {"minimum", 1}, {"maximum", 4096}, {"pattern", "^auto$"}}, at,
                     read, std::move(meaning), write);
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
      free_to_change(text_field("model.path", "a directory or an ID in the Hugging Face cache", &ModelRecipe::path,
                                "the model in Hugging Face's layout, 16/32-bit or bitsandbytes 4-bit")),
      free_to_change(text_field("model.init", "a config.json", &ModelRecipe::init,
                                "instead of model.path: start from random weights of this shape")),
      free_to_change(text_field("model.tokenizer", "a directory or file", &ModelRecipe::tokenizer,
                                "tokenizer (the one that adapter.path keeps, or else the model's own; pretraining "
                                "trains one on its data)")),
      choice_field("model.quantize", {{"none", std::nullopt}, {"nf4", QuantType::nf4}, {"fp4", QuantType::fp4}},
                   &ModelRecipe::quantize,
                   "4-bit type to quantize the base to while it loads; a 4-bit directory is used as it is"),
      flag_field("model.double_quant", &ModelRecipe::double_quant, "whether the scales are quantized too"),
      integer_field("model.block_size", 32, 4096, &ModelRecipe::block_size,
                    "weights that share one scale: 32, 64, ..., 4096"),
      texts_field("model.skip_modules", &ModelRecipe::skip_modules,
                  "modules that are not quantized (as bitsandbytes: the head)"),
      number_field(
          "model.router_aux_loss_coef", 0, 100, &ModelRecipe::router_aux_loss_coef,
          "share of the experts' load-balancing loss in the loss, over all tokens of a step; 0: off (config.json's "
          "where "
          "it says output_router_logits)"),
      choice_field(
          "model.compute_dtype",
          {{"bf16", ComputeDtype::bf16}, {"f32", ComputeDtype::f32}, {"int8", ComputeDtype::int8}},
          &ModelRecipe::compute_dtype,
          "precision of matrix products (bf16 where the CPU has it); int8: those with the frozen base of an adapter in "
          "8 bits, the others as by default"),
      choice_field(
          "model.bf16_products", {{"bf16", ops::Bf16Products::bf16}, {"f32", ops::Bf16Products::f32}},
          &ModelRecipe::bf16_products,
          "arithmetic of products of bf16 numbers: the CPU's instructions for them, or those for f32, which some CPUs "
          "are faster at (bf16 where model.compute_dtype is named; else f32 where that is measured to be 1.3 times as "
          "fast, and a run goes on as it began)"),
  };
}

std::vector<RecipeField> parallel_fields() {
  std::vector<RecipeField> fields = {
      degree_field("parallel.pipeline", &ParallelRecipe::pipeline, "stages that hold the layers one after another"),
      degree_field("parallel.tensor", &ParallelRecipe::tensor,
                   "ranks that compute every layer together, each with some of its heads and columns"),
      degree_field("parallel.shard", &ParallelRecipe::shard,
                   "ranks that share one copy's bytes and work on different microbatches (FSDP)"),
      degree_field("parallel.replicate", &ParallelRecipe::replicate,
                   "copies of the model that work on different microbatches (data parallel)"),
      integer_field(
          "parallel.experts", 1, 4096, &ParallelRecipe::experts,
          "of the ranks of parallel.replicate x parallel.shard, how many share the experts of a mixture: each holds "
          "some of every layer's, and tokens travel to those they chose"),
      integer_field("parallel.zero", 1, 3, &ParallelRecipe::zero,
                    "what parallel.shard shards: 1 optimizer state, 2 and gradients, 3 and weights"),
      flag_field("parallel.shard_adapters", &ParallelRecipe::shard_adapters,
                 "shard adapters too; else only the base is sharded and every rank has full adapters"),
      flag_field("parallel.reshard_after_forward", &ParallelRecipe::reshard_after_forward,
                 "drop a block's gathered weights after each use; false: keep them until the update"),
      integer_field("parallel.prefetch", 0, 16, &ParallelRecipe::prefetch, "blocks whose weights are gathered ahead"),
      choice_field("parallel.wire_dtype", {{"f32", DType::f32}, {"bf16", DType::bf16}}, &ParallelRecipe::wire_dtype,
                   "precision of gradients on the wire"),
      number_field("parallel.timeout_seconds", 0.1, kForever, &ParallelRecipe::timeout_seconds,
                   "how long a rank waits for another before it checks which ranks still answer"),
      choice_field("parallel.schedule",
                   {{"naive", PipelineSchedule::naive},
                    {"gpipe", PipelineSchedule::gpipe},
                    {"1f1b", PipelineSchedule::one_f_one_b}},
                   &ParallelRecipe::schedule, "order of a pipeline's work"),
      integer_field("parallel.microbatches", 0, kLargestCount, &ParallelRecipe::microbatches,
                    "in flight in one pipeline pass; 0 = all of a step"),
      stages_field(),
      flag_field("parallel.offload_activations", &ParallelRecipe::offload_activations,
                 "what blocks keep for the backward pass waits in a temporary file"),
      text_field("parallel.offload_directory", "a directory", &ParallelRecipe::offload_directory,
                 "where that file lies (output.dir), best on a disk of the rank's own host"),
  };
  // A run may go on in another layout.
  for (RecipeField& field : fields) field.decides_bits = false;
  return fields;
}

std::vector<RecipeField> output_fields() {
  std::vector<RecipeField> fields = {
      text_field("output.dir", "a directory", &OutputRecipe::dir, "where the run writes; one run per directory"),
      text_field("output.resume", "auto | never | a checkpoint's directory", &OutputRecipe::resume,
                 "auto: continue from the newest valid checkpoint, if there is one"),
      integer_field("output.keep_last", 1, kLargestCount, &OutputRecipe::keep_last, "newest checkpoints to keep"),
      flag_field("output.keep_best", &OutputRecipe::keep_best,
                 "keep the checkpoint with the lowest evaluation loss too, and export its weights"),
      flag_field("output.force", &OutputRecipe::force,
                 "replace what an earlier run left, or continue it although settings changed"),
  };
  for (RecipeField& field : fields) field.decides_bits = false;
  return fields;
}

}  // namespace nibble::detail
