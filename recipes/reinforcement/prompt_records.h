#pragma once
// The records that prompts come from, for what rewards ask of them beside the prompt.

#include <string>
#include <vector>

#include "nibble/core/data/data_options.h"

namespace nibble {

class PromptRecords {
 public:
  /// Reads the records of options.train. Throws InputError for documents, which are no records.
  explicit PromptRecords(const DataOptions& options);

  /// JSON text of record `number` (SampleInfo::record).
  const std::string& at(size_t number) const { return records_.at(number); }
  /// 16 hex digits over all of them: what rewards are made from.
  std::string fingerprint() const;

 private:
  std::vector<std::string> records_;
};

}  // namespace nibble
