#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "nibble/core/nn/parameter.h"

namespace nibble {

/// Calls body(i) for every parameter. Many small ones (an adapter's) go to the threads as wholes, because each alone
/// has work for a few; otherwise one after another. What body computes may not depend on the order.
void for_each_parameter(const std::vector<Parameter*>& parameters, const std::function<void(size_t)>& body);

}  // namespace nibble
