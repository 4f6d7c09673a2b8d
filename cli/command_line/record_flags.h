#pragma once
#include "nibble/cli/command_line/command.h"
#include "nibble/core/data/data_options.h"

namespace nibble::cli {

/// --fields and --template: how records of files are read where no recipe says it.
void add_record_flags(Command& command, DataOptions& options);

}  // namespace nibble::cli
