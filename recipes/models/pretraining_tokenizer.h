#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "nibble/core/io/files/scratch_directory.h"
#include "nibble/recipes/config/recipe.h"

namespace nibble {

/// The tokenizer of a pretraining run: the one that the recipe names or, where it names none, byte-pair encoding
/// trained on the training data, with as many pieces as the model's vocabulary has (or the text gives). The same data
/// give the same tokenizer.
class PretrainingTokenizer {
 public:
  /// Trains one unless recipe.model.tokenizer names one; a run that goes on trains the same one again. Throws as
  /// train_sentencepiece and find_data_files, and UsageError where output.dir/tokenizer is not of nibble.
  PretrainingTokenizer(const Recipe& recipe, int64_t vocab_size);
  PretrainingTokenizer(const PretrainingTokenizer&) = delete;
  PretrainingTokenizer& operator=(const PretrainingTokenizer&) = delete;

  /// Directory or file to read it from, while this object lives.
  const std::string& path() const { return path_; }
  /// Writes what was trained to output.dir/tokenizer. Only the owner of the directory's lock may.
  void keep();

 private:
  std::filesystem::path kept_;               // output.dir/tokenizer
  std::string trained_;                      // bytes of tokenizer.model, empty when none was trained
  std::optional<ScratchDirectory> scratch_;  // where it lies until it is kept
  std::string path_;
};

}  // namespace nibble
