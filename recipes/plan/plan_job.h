#pragma once
// What a plan needs to know of a recipe: config.json and the headers of weight files are read, never the weights.

#include "nibble/parallel/plan/job.h"
#include "nibble/recipes/config/recipe.h"

namespace nibble {

class TrainingData;

/// The training that `recipe` describes. A directory without weight files is taken to hold what its config.json says
/// (torch_dtype, quantization_config). Throws as model_config and match_target_modules do.
PlanJob plan_job(const Recipe& recipe);
/// That of a run, which has read its data: their tokens and samples are counted, not guessed from the files, and
/// data.max_length is that of TrainingData::planned.
PlanJob plan_job(const Recipe& recipe, const TrainingData& data);
/// The same for a model whose config is given, its path not looked at: as bf16 weights in a file.
PlanJob plan_job(const Recipe& recipe, const DecoderConfig& config);

/// The options of a recipe's adapter for a plan: its own, or those of the directory that it continues. It starts as
/// LoraInit::standard, as shapes do not depend on the values that tensors start with.
AdapterOptions planned_adapter(const AdapterRecipe& of);

/// The degrees and settings of `recipe.parallel`; recompute as train.gradient_checkpointing says, none for "auto".
PlanLayout plan_layout(const Recipe& recipe);

}  // namespace nibble
