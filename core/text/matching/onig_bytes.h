#pragma once
// Text as Oniguruma takes it.

#include <oniguruma.h>

namespace nibble {

inline const OnigUChar* onig_bytes(const char* text) { return reinterpret_cast<const OnigUChar*>(text); }

}  // namespace nibble
