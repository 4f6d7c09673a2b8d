#include "nibble/recipes/pretraining_tokenizer.h"

#include <algorithm>
#include <cstdlib>
#include <system_error>

#include "nibble/core/base/error.h"
#include "nibble/core/data/tokenizer_corpus.h"
#include "nibble/core/io/unfinished.h"
#include "nibble/core/text/train_tokenizer.h"

namespace nibble {

namespace fs = std::filesystem;

namespace {

// Until the run has its lock nothing of it may be in output.dir, where another run may be at work.
fs::path make_scratch() {
  std::string name = (fs::temp_directory_path() / "nibble-tokenizer-XXXXXX").string();
  const auto held = hold_unfinished();
  if (mkdtemp(name.data()) == nullptr) throw IoError(name, "cannot be made", "set TMPDIR to a directory with space");
  note_unfinished(name);
  return name;
}

}  // namespace

PretrainingTokenizer::PretrainingTokenizer(const Recipe& recipe, int64_t vocab_size)
    : kept_(fs::path(recipe.output.dir) / "tokenizer"), path_(recipe.model.tokenizer) {
  if (!path_.empty()) return;
  TokenizerCorpus corpus(recipe.data.train);
  TokenizerTraining training;
  training.vocab_size = static_cast<int32_t>(std::min<int64_t>(vocab_size, INT32_MAX));
  trained_ = train_sentencepiece([&](std::string& text) { return corpus.next(text); }, training);
  scratch_ = make_scratch();
  path_ = (scratch_ / "tokenizer").string();
  write_tokenizer(trained_, path_);
}

PretrainingTokenizer::~PretrainingTokenizer() {
  std::error_code ignored;
  if (scratch_.empty()) return;
  fs::remove_all(scratch_, ignored);
  forget_unfinished(scratch_);
}

void PretrainingTokenizer::keep() {
  if (!trained_.empty()) write_tokenizer(trained_, kept_, Replace::anything);
}

}  // namespace nibble
