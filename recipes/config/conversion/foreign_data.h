#pragma once
// The data that a configuration of another tool names. Internal to recipes/config.

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nibble/recipes/config/conversion/foreign_objective.h"

namespace nibble::detail {

/// A recipe has one format, one set of field names and one train_on_prompt for all its files: what the files of a
/// configuration do not agree on is left out here, and noted with their names.
struct ForeignData {
  std::vector<std::string> train, eval;
  std::string format;  ///< data.format, or what the tool calls it where it is none here; empty: not said
  std::map<std::string, std::string> fields;               ///< data.fields
  std::optional<bool> on_prompt;                           ///< data.train_on_prompt
  std::vector<std::pair<std::string, std::string>> notes;  ///< the tool's key, and what there is to say of it
};

/// The names between the commas of one of LLaMA-Factory's lists.
std::vector<std::string> names_of(const std::string& list);

/// Of Axolotl's and TRL's lists of datasets, LLaMA-Factory's names in dataset_dir, and TRL's dataset_name.
ForeignData foreign_data(const Json& theirs, Tool tool, ObjectiveType objective);

}  // namespace nibble::detail
