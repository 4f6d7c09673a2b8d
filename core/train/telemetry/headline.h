#pragma once
// The few numbers of a run that people look at first, and how they read.

#include <string>

#include "nibble/core/train/telemetry/observer.h"

namespace nibble {

/// What `metrics` have beside the loss, where they do: "accuracy" (a share, of TRL's rewards/accuracies too), "margin"
/// and "reward", in this order.
NamedNumbers headline(const NamedNumbers& metrics);
/// Its value: "62%" of an accuracy, else three digits: "0.0123".
std::string headline_text(const std::string& name, double value);
/// "0.6931", "1.2e+06"; of what rounds to zero "0.0000".
std::string loss_text(double loss);
/// Four digits: "286.8", "1.2e+06", "inf".
std::string perplexity_text(double perplexity);

}  // namespace nibble
