#include "nibble/recipes/reinforcement/prompt_records.h"

#include <span>

#include "nibble/core/base/error.h"
#include "nibble/core/io/hash.h"

namespace nibble {

PromptRecords::PromptRecords(const DataOptions& options) {
  for (const DataFile& file : find_data_files(options.train)) {
    RecordReader reader(file.path);
    const auto path = std::make_shared<const std::string>(file.path);
    if (reader.is_text()) {
      throw InputError(file.path, "is a document, not a list of prompts", "give records with a field \"prompt\"");
    }
    for (RawRecord record; reader.next(record);) records_.push_back({path, std::move(record)});
  }
}

std::string PromptRecords::fingerprint() const {
  std::string all;
  for (const PromptRecord& record : records_) all += hash_bytes(std::as_bytes(std::span(record.raw.text)));
  return hash_bytes(std::as_bytes(std::span(all))).substr(0, 16);
}

}  // namespace nibble
