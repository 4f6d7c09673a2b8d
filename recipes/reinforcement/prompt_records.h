#pragma once
// The records that prompts come from, for what rewards ask of them beside the prompt.

#include <memory>
#include <string>
#include <vector>

#include "nibble/core/data/records/record_reader.h"

namespace nibble {

/// JSON text and where it stands.
struct PromptRecord {
  std::shared_ptr<const std::string> path;
  RawRecord raw;
};

class PromptRecords {
 public:
  /// Reads the records of options.train. Throws InputError for documents, which are no records.
  explicit PromptRecords(const DataOptions& options);

  /// Record `number` (SampleInfo::record).
  const PromptRecord& at(size_t number) const { return records_.at(number); }
  /// 16 hex digits over all of them: what rewards are made from.
  std::string fingerprint() const;

 private:
  std::vector<PromptRecord> records_;
};

}  // namespace nibble
