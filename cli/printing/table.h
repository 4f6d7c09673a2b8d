#pragma once
#include <string>
#include <vector>

namespace nibble::cli {

/// Prints rows to standard output in columns.
void print_table(std::vector<std::vector<std::string>> rows);

}  // namespace nibble::cli
