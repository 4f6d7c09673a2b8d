#include "nibble/core/train/trace_hooks.h"

#include <string>

namespace nibble {

namespace {

std::string layer_name(int64_t layer) { return "layer " + std::to_string(layer); }

}  // namespace

void TraceHooks::before_forward(int64_t layer) {
  if (next_) next_->before_forward(layer);
  if (!trace_) return;
  trace_->end(head_);  // of an evaluation or a generation, where no backward came
  layer_ = trace_->begin(Phase::forward, layer_name(layer));
}

void TraceHooks::after_forward(int64_t layer) {
  if (trace_) trace_->end(layer_);
  if (next_) next_->after_forward(layer);
  if (trace_ && layer == last_) head_ = trace_->begin(Phase::forward, "head and loss");
}

void TraceHooks::before_backward(int64_t layer) {
  if (trace_) trace_->end(head_);
  if (next_) next_->before_backward(layer);
  if (trace_) layer_ = trace_->begin(Phase::backward, layer_name(layer));
}

void TraceHooks::after_backward(int64_t layer) {
  if (trace_) trace_->end(layer_);
  if (next_) next_->after_backward(layer);
}

}  // namespace nibble
