#pragma once
#include <string>
#include <vector>

namespace nibble::cli {

/// Prints rows to standard output in columns.
void print_table(const std::vector<std::vector<std::string>>& rows);
/// Whether they fit into the terminal that standard output is; true where it is none.
bool table_fits(const std::vector<std::vector<std::string>>& rows);

}  // namespace nibble::cli
