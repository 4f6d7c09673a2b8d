#pragma once
// What the format calls a value of its header.

#include <cstdint>

namespace nibble {

/// gguf_metadata_value_type
enum GgufKind : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };

}  // namespace nibble
