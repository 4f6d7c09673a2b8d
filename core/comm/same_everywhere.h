#pragma once
// Ranks that were started with different files would wait for each other for ever, or train on different things.

#include <map>
#include <string>

#include "nibble/core/comm/communicator.h"

namespace nibble {

/// Throws UsageError on every rank unless all have the same `things` (name -> text: a recipe, fingerprints). It names
/// the odd ranks, those that differ from most (of two halves, from the one with the first rank), and what differs.
void require_same_everywhere(Communicator& ranks, const std::map<std::string, std::string>& things);

}  // namespace nibble
