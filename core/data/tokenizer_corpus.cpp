#include "nibble/core/data/tokenizer_corpus.h"

#include <optional>

#include "nibble/core/data/records/json_record.h"

namespace nibble {

namespace {

void append_strings(const Json& value, std::string& text) {
  if (value.is_string()) text.append(value.get_ref<const std::string&>()).push_back('\n');
  if (!value.is_structured()) return;
  for (const Json& member : value) append_strings(member, text);
}

}  // namespace

struct TokenizerCorpus::Impl {
  std::vector<DataFile> files;
  size_t opened = 0;
  std::optional<RecordReader> reader;
  RawRecord record;
};

TokenizerCorpus::TokenizerCorpus(const std::vector<DataSource>& sources) : impl_(std::make_unique<Impl>()) {
  impl_->files = find_data_files(sources);
}

TokenizerCorpus::~TokenizerCorpus() = default;

bool TokenizerCorpus::next(std::string& text) {
  while (!impl_->reader || !impl_->reader->next(impl_->record)) {
    if (impl_->opened == impl_->files.size()) return false;
    impl_->reader.emplace(impl_->files[impl_->opened++].path);
  }
  if (impl_->reader->is_text()) {
    text = std::move(impl_->record.text);
  } else {
    text.clear();
    append_strings(parse_record(impl_->reader->path(), impl_->record), text);
  }
  text.push_back('\n');
  return true;
}

}  // namespace nibble
