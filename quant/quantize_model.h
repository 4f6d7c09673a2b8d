#pragma once
// A 16 or 32-bit model directory in, or one in 8-bit floats, a 4-bit one out, as Transformers' save_pretrained would
// write it.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "nibble/core/base/rank_context.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/quant/codec.h"

namespace nibble {

struct QuantizeModelOptions {
  QuantizeOptions codec;
  /// Modules that stay as they are, in bitsandbytes' way (see SkipRule); absent: the output head.
  std::optional<std::vector<std::string>> skip_modules;
  Replace replace = Replace::nothing;  ///< what `out` may be
  /// Called after each tensor with what is done and to be done, in bytes of the source.
  std::function<void(const std::string& tensor, uint64_t done, uint64_t total)> progress;
};

struct QuantizeModelReport {
  int64_t quantized = 0;      ///< Linear weights now in 4 bits
  int64_t experts = 0;        ///< of these, tensors of experts
  int64_t copied = 0;         ///< other tensors, as they were
  uint64_t source_bytes = 0;  ///< of all tensors
  uint64_t bytes = 0;
};

/// Quantizes every Linear of the model in `model` that is not skipped, experts too (a tensor of all of them as
/// bitsandbytes' replace_parameter_4bit does, in the order in which it is stored); other tensors keep their dtype, but
/// 8-bit floats, which become bf16.
/// Writes `out` whole or not at all: weights, config.json with quantization_config, and the tokenizer and generation
/// files.
///
/// Streams: at any time one tensor is in memory in 4 bits and a piece of it in 16. Each Linear is read twice when
/// double_quant is on: the mean of its scales stands in its state, whose length must be known before anything is
/// written. That pass also finds elements that are not finite before the output exists.
///
/// UsageError when `out` may not be replaced, or lies in or around `model`, or the model is 4-bit already; InputError
/// for a config.json, shape or dtype that cannot be; NumericError naming the tensor and element that is not finite.
QuantizeModelReport quantize_model(const std::filesystem::path& model, const std::filesystem::path& out,
                                   const QuantizeModelOptions& options, RankContext& rank);

}  // namespace nibble
