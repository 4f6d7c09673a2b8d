#pragma once
// What the model says while it learns: prompts of the data, continued by the model as it is.

#include "nibble/core/models/generation/generate.h"
#include "nibble/core/text/tokenizers/tokenizer.h"
#include "nibble/core/train/run/run.h"
#include "nibble/recipes/training/training_data.h"

namespace nibble {

/// The first `count` samples of the evaluation data, or of the training data where there is none. The prompt of a
/// sample is what comes before its first answer (trained tokens in a row); a text's is its first tokens.
class Samples {
 public:
  /// Opens the tokenizer at `tokenizer`, where there is one, to show them as text. chat_template: as
  /// open_chat_template takes it; what ends a turn there ends a continuation too.
  Samples(const TrainingData& data, const std::string& tokenizer, const std::string& chat_template, int64_t count);
  ~Samples();

  /// Continues every prompt greedily, up to the length of what is expected (at most 96 tokens), and logs it as of
  /// `run.step()`; what goes on, there or in the data, ends with an ellipsis. model: this rank's part; all ranks
  /// generate the same text together. False where the run is to stop: left at a token.
  bool write(Run& run, Decoder& model, StepExecutor& executor, DType compute_dtype) const;

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<int32_t> turn_ends_;
  std::vector<Prompt> prompts_;
  std::vector<std::vector<int32_t>> expected_;  // what the data go on with
  std::vector<bool> cut_;                       // whether they go on behind it
};

}  // namespace nibble
