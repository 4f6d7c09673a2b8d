#pragma once
// What a file holds, every byte of it, as a hash that is remembered from one start to the next.

#include <filesystem>
#include <string>

namespace nibble {

/// A hash (XXH3, 128 bits, 32 hexadecimal digits) of all bytes of `file`, read on all threads.
///
/// A file that was read before is not read again: $XDG_CACHE_HOME/nibble/content (else ~/.cache/nibble/content) has an
/// entry for every file, with device, inode, size, mtime and ctime to the nanosecond, and its hash. An entry is trusted
/// for one thing, that a file with all these numbers still has these bytes: the kernel sets ctime at every write, and
/// no call sets it back. Hence
/// - a file whose times are not yet two seconds old is not remembered: the next write might get the same time;
/// - entries in a directory that is another user's, or that others may write, are neither read nor written;
/// - a damaged entry, or one about other numbers, is none.
/// Not excluded is who acts with the user's own rights (they could change the checkpoint as well), sets the clock back,
/// or writes to the device under the file system. Where the directory cannot be made, every start reads every byte.
///
/// Throws IoError when the file cannot be read or changes while it is read.
std::string content_hash(const std::filesystem::path& file);

}  // namespace nibble
