#pragma once
// Tensors as llama.cpp has them and as a checkpoint has them: what a GgufPart says, forwards and backwards.

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "nibble/core/base/rank_context.h"
#include "nibble/core/models/decoder_config.h"
#include "nibble/core/models/families/gguf/gguf_names.h"

namespace nibble {

/// Shapes of a checkpoint's tensors by name, as config.json makes them. Tensors that a Decoder has in another form
/// (those of single experts) are not among them.
std::map<std::string, Shape> decoder_shapes(const DecoderConfig& config, RankContext& rank);

/// Rows of `width` columns that are converted at once, some four million elements.
inline int64_t rows_at_once(int64_t width) { return std::max<int64_t>((int64_t{4} << 20) / width, 1); }

/// Row i of the result is row order[i] of `rows` (f32); the same of the columns of a matrix.
Tensor in_order(const Tensor& rows, const std::vector<int64_t>& order, MemoryPool& pool);
Tensor columns_in_order(const Tensor& m, const std::vector<int64_t>& order, MemoryPool& pool);
/// The order that undoes one in which every index is.
std::vector<int64_t> inverse_order(const std::vector<int64_t>& order);

/// Values of a checkpoint become those of llama.cpp: rows (f32) begin, begin + 1, ... of the part.
void change_values(const GgufPart& part, int64_t begin, Tensor& rows);
/// And back, to floats that change_values() makes the same values of where there are any: several logarithms below 1 in
/// f32 have one exponential, of which the one nearest to the exact logarithm is taken.
void restore_values(const GgufPart& part, int64_t begin, Tensor& rows);

}  // namespace nibble
