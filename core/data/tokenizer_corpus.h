#pragma once
// The text that a tokenizer is trained on: the files of a data set, read as a stream.

#include <memory>
#include <string>
#include <vector>

#include "nibble/core/data/data_options.h"

namespace nibble {

/// All text in the files of `sources`, record by record: of a JSON record every string in it (a tokenizer for
/// instructions should know the words of questions and answers), of a .txt file every document. Weights do not count.
class TokenizerCorpus {
 public:
  /// Throws as find_data_files.
  explicit TokenizerCorpus(const std::vector<DataSource>& sources);
  ~TokenizerCorpus();

  /// The next text, false at the end. Throws InputError ("file:line:column: ...") for a broken record.
  bool next(std::string& text);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble
