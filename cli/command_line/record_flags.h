#pragma once
#include <string>
#include <vector>

#include "nibble/cli/command_line/command.h"
#include "nibble/core/data/data_options.h"
#include "nibble/core/data/dataset.h"
#include "nibble/core/io/files/output_guard.h"

namespace nibble::cli {

/// --fields, --template and --hidden-parts: how records of files are read where no recipe says it.
void add_record_flags(Command& command, DataOptions& options);

/// For texts that are computed as they are: check_text_lengths, which warns on stderr.
std::function<void(const Dataset&)> length_check(const DecoderConfig& model);

/// Of files whose every line is as logprobs and score write one for a record: an object of numbers, or lists of them,
/// under the names of one of `forms`.
IsOwn has_lines_of(std::vector<std::vector<std::string>> forms);

}  // namespace nibble::cli
