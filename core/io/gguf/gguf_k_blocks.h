#pragma once
// ggml's K-quants: 256 elements share one or two scales in f16, each 16 or 32 of them a finer one in 6 or 8 bits.
// Encoders give the bytes of ggml's reference (quantize_row_*_K_ref), which searches for the scales with the least
// weighted error: the order of every sum matters. Internal to core/io.

#include <cstddef>
#include <cstdint>

namespace nibble::gguf {

inline constexpr int64_t kKBlock = 256;
inline constexpr int64_t kQ4KBytes = 144, kQ5KBytes = 176, kQ6KBytes = 210;

/// One block: 256 elements to its bytes, and back.
void encode_q4_k(const float* x, std::byte* to);
void encode_q5_k(const float* x, std::byte* to);
void encode_q6_k(const float* x, std::byte* to);
void decode_q4_k(const std::byte* from, float* x);
void decode_q5_k(const std::byte* from, float* x);
void decode_q6_k(const std::byte* from, float* x);

}  // namespace nibble::gguf
