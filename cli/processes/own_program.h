#pragma once
// The file by which this program starts itself again.

#include <string>

namespace nibble::cli {

/// The file of this process, or what NIBBLE_PROGRAM names: an emulator of another CPU is started by a script, as Linux
/// cannot start the file alone.
std::string own_program();

}  // namespace nibble::cli
