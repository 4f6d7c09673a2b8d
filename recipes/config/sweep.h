#pragma once
// A grid over recipe keys: which runs it has, where each lives, which are done.

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "nibble/recipes/config/recipe.h"

namespace nibble {

/// A key and the values it is tried with; one value: the same for all runs.
struct SweepAxis {
  std::string key;                  ///< "optimizer.lr"
  std::vector<std::string> values;  ///< as after `key=`
};

/// One point of the grid.
struct SweepRun {
  std::string name;                    ///< "lr=1e-4,r=8": the directory under the sweep's
  std::vector<std::string> overrides;  ///< for read_recipe, output.dir among them
  std::filesystem::path directory;
};

/// Recipe keys by what follows their section: where it is one key ("lr"), a sweep takes it so.
std::map<std::string, std::vector<std::string>> keys_by_last_part();

/// Parses "lr=1e-4,2e-4" or "optimizer.betas=[0.9,0.95],[0.9,0.99]": commas inside brackets and quotes divide nothing.
/// A key without its section is completed where only one section has it, or only one that means something in the
/// recipe, which is read where that decides. Throws UsageError for an unknown or ambiguous key and for a word that is
/// no key=values.
SweepAxis parse_sweep_axis(const std::string& word, const std::function<Recipe()>& recipe = {});
/// Those of a sweep, whose words may set the objective too.
std::vector<SweepAxis> parse_sweep_axes(const std::string& recipe_file, const std::vector<std::string>& words);

/// All combinations, the last axis fastest; the sweep lives in the recipe's output.dir. Reads the recipe of every run,
/// so a value that cannot be is found before anything starts. Throws UsageError as read_recipe does, when no axis
/// has two values, and for output.dir with several or runs of the same recipe.
std::vector<SweepRun> sweep_runs(const std::string& recipe_file, const std::vector<SweepAxis>& axes);

/// Whether the run ended with a result under the same recipe, whatever its threads.
bool is_done(const std::string& recipe_file, const SweepRun& run);

}  // namespace nibble
