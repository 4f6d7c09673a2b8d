#include "nibble/recipes/models/pretraining_tokenizer.h"

#include <algorithm>

#include "nibble/core/base/error.h"
#include "nibble/core/data/tokenizer_corpus.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/text/tokenizers/train_tokenizer.h"
#include "nibble/recipes/environment/free_memory.h"

namespace nibble {

namespace fs = std::filesystem;

PretrainingTokenizer::PretrainingTokenizer(const Recipe& recipe, int64_t vocab_size)
    : kept_(fs::path(recipe.output.dir) / "tokenizer"), path_(recipe.model.tokenizer) {
  if (!path_.empty()) return;
  const std::string reason = why_not_own(kept_);
  if (!reason.empty()) throw UsageError(reason, "move it away, or choose another output.dir", kept_.string());
  TokenizerCorpus corpus(recipe.data.train);
  TokenizerTraining training;
  training.vocab_size = static_cast<int32_t>(std::min<int64_t>(vocab_size, INT32_MAX));
  trained_ = train_sentencepiece([&](std::string& text) { return corpus.next(text); }, training);
  return_free_memory();
  // Until the run has its lock nothing of it may be in output.dir, where another run may be at work.
  scratch_.emplace();
  path_ = (scratch_->path() / "tokenizer").string();
  write_tokenizer(trained_, path_);
}

void PretrainingTokenizer::keep() {
  if (!trained_.empty()) write_tokenizer(trained_, kept_, Replace::own);
}

}  // namespace nibble
