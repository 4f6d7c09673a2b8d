#pragma once
// An adapter that is trained on (adapter.path): what the recipe says of it must be what it is.

#include "nibble/adapters/peft/peft_directory.h"
#include "nibble/core/models/decoder_config.h"
#include "nibble/recipes/config/recipe.h"

namespace nibble {

/// Throws UsageError for the first key that the recipe gives with another value than the directory's
/// adapter_config.json, both named. Modules, ranks and alphas may be said in other words (all-linear, names, paths) if
/// they come to the same ones in a model of this config; lora_dropout is the recipe's to say; token ids behind the
/// config's vocabulary, which training adds by itself, need not be given.
void check_continued(const AdapterRecipe& recipe, const PeftAdapter& adapter, const DecoderConfig& config);

}  // namespace nibble
