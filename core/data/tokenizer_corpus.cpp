#include "nibble/core/data/tokenizer_corpus.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "nibble/core/data/records/record_reader.h"
#include "nibble/core/io/json/json_file.h"

namespace nibble {

namespace {

void append_strings(const nlohmann::json& value, std::string& text) {
  if (value.is_string()) text.append(value.get_ref<const std::string&>()).push_back('\n');
  if (!value.is_structured()) return;
  for (const nlohmann::json& member : value) append_strings(member, text);
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
    append_strings(parse_json(impl_->record.text, impl_->reader->path() + ":" + std::to_string(impl_->record.line)),
                   text);
  }
  text.push_back('\n');
  return true;
}

}  // namespace nibble
