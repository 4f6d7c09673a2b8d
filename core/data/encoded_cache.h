#pragma once
// Encoded data sets on disk, found again by what they were made from.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nibble/core/data/dataset.h"
#include "nibble/core/data/record_reader.h"
#include "nibble/core/data/token_file.h"
#include "nibble/core/io/atomic_file.h"

namespace nibble {

/// One data set in the directory data.cache. Its name there is a hash of the content of the files, of the options that
/// decide the samples, of the tokenizer and chat template, and of nibble's version; it holds the codes of the tokens,
/// the table of the samples and the report, with hashes of all.
class EncodedCache {
 public:
  /// Reads the files once, for their hashes. Throws IoError.
  EncodedCache(const std::vector<DataSource>& sources, const std::vector<DataFile>& files, const DataOptions& options,
               const Encoder& encoder);
  ~EncodedCache();

  /// The data set of an earlier run, its tokens mapped; nothing where there is none, or where it is damaged.
  std::optional<Dataset> find() const;

  /// Where the tokens of a new one go.
  TokenFile& tokens();
  /// Publishes what `dataset` has; its samples lie in `blocks`, in order.
  struct Block {
    const int32_t* begin = nullptr;
    size_t size = 0;
    uint64_t first = 0;
  };
  void store(const Dataset& dataset, const std::vector<Block>& blocks);

 private:
  const std::vector<DataFile>& files_;
  std::filesystem::path target_;
  std::unique_ptr<AtomicDirectory> building_;
  std::unique_ptr<TokenFile> tokens_;
};

}  // namespace nibble
