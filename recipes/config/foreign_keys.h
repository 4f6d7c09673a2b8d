#pragma once
// What the keys and values of other fine-tuning tools are called here, for the hint in a refusal.

#include <string>
#include <string_view>

namespace nibble {

/// The recipe's key for one of Axolotl, LLaMA-Factory, torchtune, TRL, Unsloth or Transformers' Trainer
/// ("train.accumulate" for "gradient_accumulation_steps"); a section before it does not matter. Empty when unknown.
std::string key_for_foreign(std::string_view key);

/// The same for values that name a choice ("chat" for "sharegpt").
std::string value_for_foreign(std::string_view value);

}  // namespace nibble
