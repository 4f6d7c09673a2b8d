#include "nibble/recipes/config/conversion/foreign_defaults.h"

namespace nibble::detail {

namespace {

using Defaults = std::vector<ForeignDefault>;

// Axolotl's schema.py; LLaMA-Factory's hparams and TRL's SFTConfig and ModelConfig, which are Transformers'
// TrainingArguments with some of their own.
Defaults defaults_of(const Json& theirs, Tool tool) {
  if (tool == Tool::axolotl) {
    return {{"num_epochs", "1"},
            {"sequence_len", "512"},
            {"gradient_accumulation_steps", "1"},
            {"micro_batch_size", "1"},
            {"sample_packing", "false"}};
  }
  if (tool == Tool::llama_factory) {
    const bool pretrains = theirs.value("stage", Json()) == "pt";
    return {{"learning_rate", "5e-5"},
            {"num_train_epochs", "3"},
            {"per_device_train_batch_size", "8"},
            {"lr_scheduler_type", "\"linear\""},
            {"cutoff_len", "2048"},
            {"packing", pretrains ? "true" : "false"},
            {"lora_rank", "8"},
            {"lora_target", "\"all\""}};
  }
  return {{"num_train_epochs", "3"},
          {"per_device_train_batch_size", "8"},
          {"lr_scheduler_type", "\"linear\""},
          {"max_length", "1024"},
          {"packing", "false"},
          {"use_bnb_nested_quant", "false"},
          {"lora_r", "16"},
          {"lora_alpha", "32"},
          {"lora_dropout", "0.05"},
          {"lora_target_modules", "[\"q_proj\", \"v_proj\"]"}};
}

}  // namespace

std::vector<ForeignDefault> foreign_defaults(const Json& theirs, Tool tool, ObjectiveType type) {
  Defaults all = defaults_of(theirs, tool);
  // Of TRL's trainers, on which Axolotl's rl is built.
  if (type == ObjectiveType::rloo) all.push_back({"num_generations", "2"});
  if (type == ObjectiveType::grpo || type == ObjectiveType::rloo) all.push_back({"max_completion_length", "512"});
  if (tool == Tool::trl) {
    const char* rate = type == ObjectiveType::reward ? "1e-4" : "1e-6";
    all.push_back({"learning_rate", type == ObjectiveType::sft ? "2e-5" : rate});
  }
  if (type == ObjectiveType::simpo && tool == Tool::llama_factory) all.push_back({"cpo_alpha", "0"});
  return all;
}

}  // namespace nibble::detail
