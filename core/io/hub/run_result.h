#pragma once
// Models and adapters by the names that people give them.

#include <string>

namespace nibble {

/// The directory of the model that `named` is: that directory, the one of a run that left it in model/, or an ID in the
/// Hugging Face cache (find_in_hub). What is nothing of it stays as it is. Throws InputError for the directory of a run
/// that has not finished, or that left no model.
std::string find_model(const std::string& named);

/// The same of an adapter, which a run leaves in adapter/.
std::string find_adapter(const std::string& named);

/// The adapter, or else the model, that gives scores.
std::string find_scorer(const std::string& named);

}  // namespace nibble
