#include "nibble/recipes/config/foreign_keys.h"

#include <algorithm>
#include <initializer_list>
#include <span>

namespace nibble {

namespace {

struct Ours {
  std::string_view word;
  std::initializer_list<std::string_view> theirs;
};

const Ours kKeys[] = {
    {"model.path", {"base_model", "model_name_or_path", "model_name", "checkpoint_dir", "_component_"}},
    {"model.tokenizer", {"tokenizer_name", "tokenizer_path", "tokenizer_config"}},
    {"model.quantize", {"load_in_4bit", "load_in_8bit", "quantization_bit", "bnb_4bit_quant_type"}},
    {"model.double_quant", {"bnb_4bit_use_double_quant", "use_bnb_nested_quant", "double_quantization"}},
    {"model.router_aux_loss_coef", {"moe_aux_loss_coef", "router_aux_loss_coef"}},
    {"model.compute_dtype", {"bnb_4bit_compute_dtype", "torch_dtype", "dtype", "bf16", "fp16"}},
    {"adapter.r", {"rank", "lora_rank", "lora_r"}},
    {"adapter.lora_alpha", {"alpha"}},
    {"adapter.lora_dropout", {"dropout"}},
    {"adapter.target_modules", {"lora_target", "lora_target_modules", "lora_target_linear", "lora_attn_modules"}},
    {"adapter.modules_to_save", {"lora_modules_to_save", "additional_target"}},
    {"adapter.target_parameters", {"lora_target_parameters"}},
    {"adapter.trainable_token_indices", {"peft_trainable_token_indices"}},
    {"adapter.layers_to_transform", {"peft_layers_to_transform"}},
    {"adapter.layers_pattern", {"peft_layers_pattern"}},
    {"adapter.init_lora_weights", {"peft_init_lora_weights", "pissa_init"}},
    {"adapter.type", {"use_peft", "finetuning_type", "peft_type"}},
    {"adapter.path", {"adapter_name_or_path", "lora_model_dir"}},
    {"adapter.use_rslora", {"rslora", "peft_use_rslora"}},
    {"adapter.use_dora", {"dora", "peft_use_dora"}},
    {"objective.type", {"stage", "rl"}},
    {"objective.beta", {"rl_beta", "pref_beta", "orpo_alpha"}},
    {"objective.loss_type", {"pref_loss"}},
    {"objective.label_smoothing", {"dpo_label_smoothing"}},
    {"objective.use_weighting", {"dpo_use_weighting"}},
    {"objective.desirable_weight", {"kto_chosen_weight", "kto_desirable_weight"}},
    {"objective.undesirable_weight", {"kto_rejected_weight", "kto_undesirable_weight"}},
    {"objective.reference", {"ref_model"}},
    {"rollout.completions", {"num_generations"}},
    {"rollout.max_new_tokens", {"max_completion_length", "response_length"}},
    {"data.train",
     {"dataset", "datasets", "pretraining_dataset", "dataset_name", "dataset_dir", "data_files", "train_file"}},
    {"data.eval", {"eval_dataset", "test_datasets", "validation_file"}},
    {"data.eval_fraction", {"val_size", "val_set_size"}},
    {"data.template", {"chat_template"}},
    {"data.max_length",
     {"sequence_len", "cutoff_len", "max_seq_length", "max_seq_len", "model_max_length", "block_size"}},
    {"data.pack", {"packing", "packed", "sample_packing", "neat_packing"}},
    {"data.train_on_prompt", {"train_on_inputs", "train_on_input"}},
    {"train.microbatch_size", {"micro_batch_size", "batch_size", "per_device_train_batch_size"}},
    {"train.accumulate", {"gradient_accumulation_steps", "grad_accumulation_steps"}},
    {"train.epochs", {"num_epochs", "num_train_epochs"}},
    {"train.steps", {"max_steps", "max_steps_per_epoch", "iters"}},
    {"train.max_grad_norm", {"clip_grad_norm", "gradient_clipping"}},
    {"train.neftune_noise_alpha", {"noisy_embedding_alpha"}},
    {"train.gradient_checkpointing", {"enable_activation_checkpointing", "grad_checkpoint"}},
    {"train.log_every", {"logging_steps", "log_every_n_steps"}},
    {"train.eval_every",
     {"eval_steps", "evals_per_epoch", "eval_strategy", "evaluation_strategy", "run_val_every_n_steps"}},
    {"train.save_every", {"save_steps", "saves_per_epoch", "save_strategy"}},
    {"train.early_stop", {"early_stopping_patience"}},
    {"train.threads", {"num_threads"}},
    {"optimizer.lr", {"learning_rate"}},
    {"optimizer.type", {"optim"}},
    {"optimizer.schedule", {"lr_scheduler", "lr_scheduler_type"}},
    {"optimizer.warmup_steps", {"num_warmup_steps"}},
    {"optimizer.min_lr", {"cosine_min_lr_ratio"}},
    {"optimizer.betas", {"adam_beta1", "adam_beta2"}},
    {"optimizer.eps", {"adam_epsilon"}},
    {"output.dir", {"output_dir"}},
    {"output.resume", {"resume_from_checkpoint", "auto_resume_from_checkpoints"}},
    {"output.force", {"overwrite_output_dir"}},
    {"output.keep_last", {"save_total_limit"}},
    {"output.keep_best", {"load_best_model_at_end"}},
    {"parallel.tensor", {"tensor_parallel_size"}},
    {"parallel.pipeline", {"pipeline_parallel_size"}},
};

const Ours kValues[] = {
    {"chat", {"sharegpt", "openai", "messages", "chat_template"}},
    {"text", {"pretrain"}},
    {"auto", {"jsonl", "json"}},
    {"nf4", {"4bit", "int4"}},
    {"adamw", {"adamw_torch", "adamw_torch_fused", "adamw_hf", "adam", "paged_adamw", "paged_adamw_32bit"}},
    {"adamw8bit", {"adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit"}},
    {"cosine", {"cosine_with_restarts", "cosine_with_min_lr"}},
    {"constant", {"constant_with_warmup"}},
    {"f32", {"float32", "fp32"}},
    {"bf16", {"bfloat16", "float16", "fp16"}},
    {"lora", {"qlora"}},
};

std::string look_up(std::span<const Ours> table, std::string_view word) {
  for (const Ours& ours : table) {
    if (std::ranges::count(ours.theirs, word) > 0) return std::string(ours.word);
  }
  return "";
}

}  // namespace

std::string key_for_foreign(std::string_view key) { return look_up(kKeys, key.substr(key.rfind('.') + 1)); }

std::string value_for_foreign(std::string_view value) { return look_up(kValues, value); }

}  // namespace nibble
