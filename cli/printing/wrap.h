#pragma once
// Lines that fit into a terminal.

#include <cstdio>
#include <string>

namespace nibble::cli {

/// Of the terminal that `stream` is; 0 where it is none.
size_t terminal_columns(std::FILE* stream);

/// `text` with each line that is longer than `columns` broken at blanks (0: as it is). What follows a break is indented
/// by two more than the line, in a list ("  --out TEXT    Where it goes") to the column of what the name stands for. A
/// word is never broken, nor is a line to be copied, which begins with "  nibble " or "Example: ".
std::string wrapped(const std::string& text, size_t columns);

}  // namespace nibble::cli
