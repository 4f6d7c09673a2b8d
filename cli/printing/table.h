#pragma once
#include <string>
#include <vector>

namespace nibble::cli {

/// Prints rows to standard output in columns; on a terminal that is too narrow for all, some below the others, with the
/// first column again.
void print_table(std::vector<std::vector<std::string>> rows);

}  // namespace nibble::cli
