#pragma once
// How much arithmetic training takes, for shares of the peak.

namespace nibble {

class Decoder;

/// Floating point operations of the products with a model's matrices that one token needs: forward, gradient of the
/// input above the lowest trainable module, gradient of the matrix where it is trained. What is computed again to save
/// memory, attention scores and adapters are not counted, so a share of the peak made from it is a lower bound.
struct Work {
  double per_token = 0;
  double per_label_token = 0;  ///< of the head, which runs for tokens with a label only
};

Work training_work(Decoder& model);

}  // namespace nibble
