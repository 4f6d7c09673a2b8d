#pragma once
// An embedding that is the head too, where the first and the last stage of a pipeline have a copy each.

#include <string>

#include "nibble/core/models/decoder.h"

namespace nibble {

inline bool is_tied_embedding(const Decoder& stage, const std::string& parameter) {
  return stage.config().tied_head && parameter == stage.config().names.embedding + ".weight";
}

/// Whether another stage has it too: their gradients are added.
inline bool is_tied_apart(const Decoder& stage, const std::string& parameter) {
  return is_tied_embedding(stage, parameter) && stage.has_embedding() != stage.has_head();
}

/// Whether this is the copy: the first stage counts and writes it.
inline bool is_tied_copy(const Decoder& stage, const std::string& parameter) {
  return is_tied_embedding(stage, parameter) && !stage.has_embedding();
}

}  // namespace nibble
