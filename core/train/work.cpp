#include "nibble/core/train/work.h"

#include "nibble/core/models/decoder.h"

namespace nibble {

Work training_work(Decoder& model) {
  bool above_trainable = false;  // whether a gradient has to pass through
  bool first = true;
  model.visit([&](Parameter& parameter) {
    if (first && parameter.trainable) above_trainable = true;  // the embedding comes first
    first = false;
  });
  Work work;
  double last = 0;
  model.visit_linears([&](Linear& linear) {
    const double product = 2.0 * static_cast<double>(linear.in_features()) * static_cast<double>(linear.out_features());
    last = product * (1 + (above_trainable ? 1 : 0) + (linear.weight().trainable() ? 1 : 0));
    work.per_token += last;
    above_trainable = above_trainable || linear.has_trainable();
  });
  work.per_token -= last;  // the head comes last
  work.per_label_token = last;
  return work;
}

}  // namespace nibble
