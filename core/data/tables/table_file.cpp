#include "nibble/core/data/tables/table_file.h"

#include <xxhash.h>

#include "nibble/core/base/error.h"
#include "nibble/core/data/large_array.h"

namespace nibble {

namespace {

constexpr const char* kRemedy = "write it again with pyarrow's defaults; if it is damaged, download or copy it again";

}  // namespace

uint64_t TableFile::hash() const {
  const uint64_t hash = XXH3_64bits(map_.data(), map_.size());
  release_pages(file());
  return hash;
}

void TableFile::refuse(const std::string& reason) const { throw InputError(path(), reason, kRemedy); }

void TableFile::refuse_row(const RawRecord& record, const std::string& reason) const {
  throw InputError(record_place(path(), record), reason, kRemedy);
}

void TableFile::begin_row(RawRecord& record) {
  record.text.clear();
  record.line = ++row_;
  record.column = 0;
}

}  // namespace nibble
