#pragma once
#include <filesystem>

#include "nibble/cli/command_line/command.h"
#include "nibble/core/data/data_options.h"
#include "nibble/core/data/dataset.h"

namespace nibble::cli {

/// --fields, --template and --hidden-parts: how records of files are read where no recipe says it.
void add_record_flags(Command& command, DataOptions& options);

/// For texts that are computed as they are: check_text_lengths, which warns on stderr.
std::function<void(const Dataset&)> length_check(const DecoderConfig& model);

/// Whether a file begins with a line as logprobs and score write one for each record: an object of numbers, or lists of
/// them, under their names alone.
bool has_numbers_of_records(const std::filesystem::path& file);

}  // namespace nibble::cli
