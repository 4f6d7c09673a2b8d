#pragma once
// What an adapter is and where it goes, by the names and rules of PEFT's LoraConfig.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace nibble {

/// Which modules: names (the whole path, or its end after a dot), or one regular expression of Python's `re` that must
/// match the whole path. The pattern "all-linear" (any case) means every Linear but the output head.
struct ModuleSelector {
  std::vector<std::string> names;
  std::string pattern;  ///< empty: none

  bool empty() const { return names.empty() && pattern.empty(); }
  bool all_linear() const;
};

/// Where the files of a model call modules otherwise than PEFT does, because Transformers does.
struct PeftPaths {
  std::string file_prefix, peft_prefix;                     ///< how paths begin in the files, and in PEFT
  std::vector<std::pair<std::string, std::string>> within;  ///< the same for what stands within a path

  /// PEFT's path of a module or tensor of the files; one of PEFT as it is.
  std::string of(const std::string& path) const;
};

/// How A and B start. Of an embedding A starts at zero and B normal, whatever is said, unless `random`.
enum class LoraInit : uint8_t {
  standard,  ///< PEFT `true`: A uniform in +-1/sqrt(in), B zero
  gaussian,  ///< A normal with deviation 1/r, B zero
  random,    ///< PEFT `false`: A uniform in +-1/sqrt(in), B uniform in +-1/sqrt(r): not neutral, for tests
  pissa,     ///< the largest singular values of W (Meng et al. 2024); the base keeps the rest
  olora,     ///< the first r rows and columns of W = Q R (Buyukakyuz 2024); the base keeps the rest
  loftq,     ///< the largest singular values of what rounding to 4 bits lost (Li et al. 2023); the base stays
};

/// Whether the base beside such an adapter is W - s B0 A0, B0 and A0 being what the adapter started from.
inline bool takes_from_base(LoraInit init) { return init == LoraInit::pissa || init == LoraInit::olora; }

/// Which existing biases are trained beside the adapter.
enum class BiasTraining : uint8_t { none, lora_only, all };

/// Keys of PEFT's LoraConfig with PEFT's defaults.
struct AdapterOptions {
  int64_t r = 8;
  double lora_alpha = 8;
  double lora_dropout = 0;        ///< in [0, 1), applied to the input of A
  ModuleSelector target_modules;  ///< empty: PEFT's default of the model type
  ModuleSelector exclude_modules;
  bool use_rslora = false;  ///< scaling alpha / sqrt(r) (Kalajdzievski 2023) instead of alpha / r
  bool use_dora = false;    ///< weight-decomposed LoRA (Liu et al. 2024)
  bool lora_bias = false;   ///< B has a bias
  LoraInit init_lora_weights = LoraInit::standard;
  int64_t pissa_iterations = 0;  ///< "pissa_niter_N": N rounds of a randomized SVD; 0: exact
  /// Regular expression for the end of a module path (from a dot or the start) -> value; the first that matches wins.
  std::vector<std::pair<std::string, int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  std::optional<std::vector<int64_t>> layers_to_transform;  ///< only with a list of target names
  std::vector<std::string> layers_pattern;
  std::vector<std::string> target_parameters;  ///< ends of paths of tensors of all experts, or of routers' weights
  std::vector<std::string> modules_to_save;    ///< ends of module paths, fully trained
  /// Rows of tables that are trained alone: end of the table's path ("" is the tokens' embedding) -> token ids. A tied
  /// head sees the rows too.
  std::vector<std::pair<std::string, std::vector<int64_t>>> trainable_token_indices;
  BiasTraining bias = BiasTraining::none;
  bool fan_in_fan_out = false;     ///< the base keeps W as [in, out] (GPT-2); written as PEFT does, the model decides
  std::string base_model;          ///< base_model_name_or_path
  std::string task = "CAUSAL_LM";  ///< task_type
  /// Regular expressions are compared with these paths, names with those of the files. Set by in_file_names().
  PeftPaths paths = {};
};

/// Throws UsageError, placed at `place` (a recipe key or a file), for values that cannot be: r < 1, dropout outside
/// [0, 1), a pattern that is no regular expression, layers_to_transform without a list of targets, ...
void check_options(const AdapterOptions& options, const std::string& place);

}  // namespace nibble
