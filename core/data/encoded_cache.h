#pragma once
// Encoded data sets on disk, found again by what they were made from.

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nibble/core/data/dataset.h"
#include "nibble/core/data/records/record_reader.h"

namespace nibble {

/// One data set in the directory data.cache. Its name there is a hash of the content of the files, of the options that
/// decide the samples, of the tokenizer and chat template, and of nibble's version; it holds the codes of the tokens
/// (tokens.bin, int32), the table of the samples (samples.bin, SampleRow) and the report, with hashes of all.
class EncodedCache {
 public:
  /// Reads the files once, for their hashes. Throws IoError.
  EncodedCache(const std::vector<DataSource>& sources, const std::vector<DataFile>& files, const DataOptions& options,
               const Encoder& encoder);
  ~EncodedCache();

  /// The data set of an earlier run, mapped; nothing where there is none, or where it is damaged.
  std::optional<Dataset> find() const;

  /// Appends a sample to a new one; row.first is set here. Throws IoError.
  void add(SampleRow row, std::span<const int32_t> codes);
  /// Publishes the new one with the weights, report and fingerprint of `dataset`, whose samples become the mapped ones.
  void publish(Dataset& dataset);

 private:
  struct Writer;
  const std::vector<DataFile>& files_;
  std::filesystem::path cache_, target_;
  std::unique_ptr<Writer> writer_;

  void map_into(Dataset& dataset, const std::filesystem::path& from) const;
};

}  // namespace nibble
