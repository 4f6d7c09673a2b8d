#pragma once
// Labels of whole texts before a model learns them.

#include <string>
#include <vector>

#include "nibble/core/data/dataset.h"
#include "nibble/core/objectives/options.h"

namespace nibble {

/// Throws InputError for the first record of `dataset` whose label a score head of `labels` rows cannot learn; returns
/// warnings of data that have one label only, or that lack a class.
std::vector<std::string> check_labels(const Dataset& dataset, const ObjectiveOptions& options, int64_t labels);

}  // namespace nibble
