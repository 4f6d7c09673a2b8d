#include "nibble/core/train/telemetry/trace_hooks.h"

namespace nibble {

void TraceHooks::begin(Phase phase, int64_t layer) {
  if (!trace_) return;
  const std::string name = layer < 0         ? "embeddings"
                           : layer < layers_ ? "layer " + std::to_string(layer)
                                             : "head and loss";
  span_ = trace_->begin(phase, name);
}

void TraceHooks::end() {
  if (trace_) trace_->end(span_);
}

void TraceHooks::before_forward(int64_t layer) {
  if (exchange_) {
    const TraceSpan span(trace_, Phase::communication, "gather weights");
    exchange_->before_forward(layer);
  }
  begin(Phase::forward, layer);
}

void TraceHooks::after_forward(int64_t layer) {
  end();
  if (exchange_) exchange_->after_forward(layer);
}

void TraceHooks::before_backward(int64_t layer) {
  if (exchange_) {
    const TraceSpan span(trace_, Phase::communication, "gather weights");
    exchange_->before_backward(layer);
  }
  begin(layer == layers_ ? Phase::forward : Phase::backward, layer);
}

void TraceHooks::after_backward(int64_t layer) {
  end();
  if (!exchange_) return;
  const TraceSpan span(trace_, Phase::communication, "scatter gradients");
  exchange_->after_backward(layer);
}

}  // namespace nibble
