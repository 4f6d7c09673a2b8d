#pragma once
// How an adapter is saved whose start cannot be computed again from the base (pissa_niter_N): B A - B0 A0 is a plain
// LoRA of twice the rank beside the base as it was.

#include <string>
#include <utility>
#include <vector>

#include "nibble/adapters/attach.h"

namespace nibble {

/// attached.options, or those of the plain LoRA.
AdapterOptions saved_options(const AttachedAdapter& attached);

/// The adapter's tensors that are in `decoder`, under their PEFT names in module order, as they belong to these
/// options.
std::vector<std::pair<std::string, Tensor>> saved_tensors(Decoder& decoder, const AttachedAdapter& attached,
                                                          MemoryPool& pool);

}  // namespace nibble
