#pragma once
// Comma-separated values (RFC 4180): cells in quotation marks may hold commas, line breaks and doubled marks.

#include <string>
#include <vector>

#include "nibble/core/data/records/byte_source.h"
#include "nibble/core/data/records/record_reader.h"

namespace nibble {

using CsvColumns = std::vector<std::string>;

/// The names of the columns. Throws InputError for a name that comes twice, and for a file that is separated otherwise.
CsvColumns read_csv_header(ByteSource& bytes);

/// The next row as an object of strings; blank lines are skipped; false at the end. Throws InputError
/// ("file:line:column: ...") for a row with another number of cells than there are columns, for marks that do not
/// close, and for text that is not UTF-8.
bool read_csv_row(ByteSource& bytes, const CsvColumns& columns, RawRecord& record);

}  // namespace nibble
