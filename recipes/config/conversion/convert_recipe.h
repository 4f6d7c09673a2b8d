#pragma once
// A recipe made of another tool's configuration.

#include <string>
#include <vector>

namespace nibble {

struct ConvertedRecipe {
  std::string text;  ///< JSON
  std::string tool;  ///< "Axolotl", "LLaMA-Factory" or "TRL"
  /// A line for each key that has no counterpart or whose value has none, for each file that has to be looked at, and
  /// for the tool's defaults that were written out.
  std::vector<std::string> notes;
};

/// `text`: a configuration of Axolotl, LLaMA-Factory or TRL, in YAML where `place` ends like it, or in JSON. The recipe
/// has what has a counterpart; where the tool's default is not ours, the tool's. Throws InputError with line and column
/// for a text that is neither, UsageError for a configuration of none of the three, for a training that is not
/// converted, and for one of TRL whose keys fit several of its trainers, unless `objective` ("dpo") names one.
ConvertedRecipe convert_recipe(const std::string& text, const std::string& place, const std::string& objective = "");

}  // namespace nibble
