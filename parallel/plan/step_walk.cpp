#include "nibble/parallel/plan/step_walk.h"

#include <algorithm>

#include "nibble/core/models/head_loss.h"

namespace nibble::detail {

namespace {

constexpr int64_t kFloat = 4;

const PlannedLinear* find(const PlannedGroup& group, const std::string& name) {
  if (name.empty()) return nullptr;
  for (const PlannedLinear& linear : group.linears) {
    if (linear.module.ends_with("." + name)) return &linear;
  }
  return nullptr;
}

}  // namespace

PassWalk::PassWalk(const PlanJob& job, const PlannedModel& model, LayerRange range, const PlanLayout& layout,
                   PoolModel& pool, Hooks& hooks)
    : job_(job),
      model_(model),
      config_(model.config),
      range_(range),
      layout_(layout),
      in_parts_(layout.tensor > 1),
      pool_(pool),
      hooks_(hooks),
      lowest_(lowest_with_backward(model, range)) {
  for (lowest_trained_ = -1; lowest_trained_ < config_.layers; ++lowest_trained_) {
    if (model.group(lowest_trained_).has_trainable()) break;
  }
}

// Rows of the residual stream become their sum over tensor-parallel ranks (all_reduce_tree): parts that arrive, and the
// sum of this rank's share.
void PassWalk::sum_parts(int64_t rows) const {
  if (!in_parts_) return;
  const int64_t bytes = rows * config_.width * kFloat;
  const Held received = pool_.hold(MemoryUse::workspace, bytes);
  const Held sum = pool_.hold(MemoryUse::workspace, bytes / layout_.tensor);
}

// [T, columns], of `bytes` bytes an element.
Held PassWalk::act(int64_t columns, int64_t bytes) const {
  return pool_.hold(MemoryUse::activations, job_.tokens * columns * bytes);
}

std::vector<Held> PassWalk::tables() const {
  std::vector<Held> tables;
  for (const RopeConfig& rope : config_.rope) {
    int64_t rows = 256;
    while (rows < job_.document_length) rows *= 2;
    for (int i = 0; i < 2; ++i) tables.push_back(pool_.hold(MemoryUse::workspace, rows * rope.size / 2 * kFloat));
  }
  return tables;
}

void PassWalk::linear_forward(const PlannedLinear& linear, int64_t rows, std::vector<Held>* saved) {
  if (linear.r == 0) return;
  const auto hold = [&](int64_t columns, int64_t bytes) {
    return pool_.hold(MemoryUse::activations, rows * columns * bytes);
  };
  std::vector<Held> scale;
  if (linear.dora) {
    scale.push_back(pool_.hold(MemoryUse::workspace, linear.r * linear.out * kFloat));
    scale.push_back(pool_.hold(MemoryUse::workspace, 2 * linear.out * kFloat));
  }
  const Held h = hold(linear.r, element());
  if (job_.dropout) {
    const Held dropped = hold(linear.in, element());
    if (linear.dora) {
      const Held unscaled = hold(linear.out, element()), change = hold(linear.out, element());
      const Held wide = element() == kFloat ? Held() : hold(linear.out, kFloat);
      if (saved) saved->push_back(unscaled);
    }
  } else if (linear.dora && saved) {
    saved->push_back(hold(linear.out, element()));
  }
  if (saved) saved->push_back(h);
}

void PassWalk::linear_backward(const PlannedLinear& linear, int64_t rows, bool dx, bool accumulate, int64_t dx_bytes) {
  if (linear.r == 0) return;
  const auto hold = [&](int64_t columns, int64_t bytes) {
    return pool_.hold(MemoryUse::activations, rows * columns * bytes);
  };
  const Held scaled = linear.dora ? hold(linear.out, element()) : Held();
  const Held scale = linear.dora ? pool_.hold(MemoryUse::workspace, linear.r * linear.out * kFloat) : Held();
  const Held dh = hold(linear.r, element());
  if (!job_.dropout) return;
  { const Held dropped = hold(linear.in, element()); }
  if (!dx || (!accumulate && !linear.dora)) return;
  const Held part = hold(linear.in, dx_bytes);
  const Held wide = dx_bytes == kFloat ? Held() : hold(linear.in, kFloat);
}

std::vector<std::string> PassWalk::attention_inputs() const {
  const AttentionNames& names = config_.names.block.attention;
  return {names.qkv, names.q, names.k, names.v};
}

std::vector<std::string> PassWalk::mlp_inputs() const {
  const MlpNames& names = config_.names.block.mlp;
  return {names.gate_up, names.gate, names.up};
}

bool PassWalk::any_trainable(const PlannedGroup& layer, const std::vector<std::string>& names) const {
  return std::ranges::any_of(names, [&](const std::string& name) {
    const PlannedLinear* linear = find(layer, name);
    return linear && linear->has_trainable();
  });
}

// The norm's output; its statistics are kept.
Held PassWalk::norm_forward(int64_t columns, int64_t bytes, std::vector<Held>* saved) const {
  Held y = act(columns, bytes);
  const Held inv = act(1, kFloat), mean = config_.norm.kind == NormKind::layer ? act(1, kFloat) : Held();
  if (saved) saved->insert(saved->end(), {inv, mean});
  return y;
}

void PassWalk::attention_forward(const PlannedGroup& layer, std::vector<Held>* saved) {
  const AttentionNames& names = config_.names.block.attention;
  const int64_t q_width = config_.heads * config_.head_size, kv_width = config_.kv_heads * config_.head_size;
  const Held q = act(q_width, element()), k = act(kv_width, element()), v = act(kv_width, element());
  const auto project = [&](const std::string& name, int64_t width, bool normed) {
    const PlannedLinear* linear = find(layer, name);
    if (!linear) return;
    const Held raw = normed ? act(width, kFloat) : Held();
    linear_forward(*linear, job_.tokens, saved);
    if (saved && raw) saved->push_back(raw);
  };
  if (const PlannedLinear* fused = find(layer, names.qkv)) {
    const Held all = act(q_width + 2 * kv_width, element());
    linear_forward(*fused, job_.tokens, saved);
  } else {
    project(names.q, q_width, config_.qk_norm.has_value());
    project(names.k, kv_width, config_.qk_norm.has_value());
    project(names.v, kv_width, false);
  }
  const bool clipped = saved && config_.qkv_clip > 0;
  const Held inside = clipped ? act(q_width + 2 * kv_width, 1) : Held();
  const Held out = act(q_width, element()), sums = act(config_.heads, kFloat);
  linear_forward(*find(layer, names.output), job_.tokens, saved);
  if (!saved) return;
  saved->insert(saved->end(), {q, k, v, inside, out, sums});
}

void PassWalk::attention_backward(const PlannedGroup& layer, bool dx, Held& dinput) {
  const AttentionNames& names = config_.names.block.attention;
  const int64_t q_width = config_.heads * config_.head_size, kv_width = config_.kv_heads * config_.head_size;
  const PlannedLinear* fused = find(layer, names.qkv);
  const auto trains = [&](const std::string& name) {
    const PlannedLinear* linear = find(layer, name);
    return linear && linear->has_trainable();
  };
  const bool below = dx || trains(names.qkv) || trains(names.q) || trains(names.k) || trains(names.v) ||
                     (config_.qk_norm && layer.vectors_trained);
  const PlannedLinear& output = *find(layer, names.output);
  if (!below) return linear_backward(output, job_.tokens, false, false, element());
  const Held dout = act(q_width, element());
  linear_backward(output, job_.tokens, true, false, element());
  const Held dq = act(q_width, element()), dk = act(kv_width, element()), dv = act(kv_width, element());
  if (dx) dinput = act(config_.width, kFloat);
  if (fused) {
    const Held all = act(q_width + 2 * kv_width, element());
    return linear_backward(*fused, job_.tokens, dx, false, kFloat);
  }
  const auto project = [&](const std::string& name, int64_t width, bool normed, bool accumulate) {
    const Held raw = normed ? act(width, kFloat) : Held();
    const Held narrow = normed && element() != kFloat ? act(width, element()) : Held();
    linear_backward(*find(layer, name), job_.tokens, dx, accumulate, kFloat);
  };
  project(names.q, q_width, config_.qk_norm.has_value(), false);
  project(names.k, kv_width, config_.qk_norm.has_value(), true);
  project(names.v, kv_width, false, true);
}

void PassWalk::mlp_forward(const PlannedGroup& layer, std::vector<Held>* saved) {
  const MlpNames& names = config_.names.block.mlp;
  const int64_t width = config_.mlp_width;
  const Held up = act(width, element()), gate = config_.gated_mlp ? act(width, element()) : Held();
  if (const PlannedLinear* fused = find(layer, names.gate_up)) {
    const Held both = act(2 * width, element());
    linear_forward(*fused, job_.tokens, saved);
  } else {
    for (const std::string& name : {names.gate, names.up}) {
      const PlannedLinear* linear = find(layer, name);
      if (!linear) continue;
      linear_forward(*linear, job_.tokens, saved);
    }
  }
  {
    const Held product = act(width, element());
    linear_forward(*find(layer, names.down), job_.tokens, saved);
  }
  if (!saved) return;
  saved->insert(saved->end(), {up, gate});
}

void PassWalk::mlp_backward(const PlannedGroup& layer, bool dx, Held& dinput) {
  const MlpNames& names = config_.names.block.mlp;
  const int64_t width = config_.mlp_width;
  bool below = dx;
  for (const std::string& name : {names.gate_up, names.gate, names.up}) {
    const PlannedLinear* linear = find(layer, name);
    below = below || (linear && linear->has_trainable());
  }
  const PlannedLinear& down = *find(layer, names.down);
  Held x = down.has_trainable() ? act(width, element()) : Held();
  if (!below) return linear_backward(down, job_.tokens, false, false, element());
  Held dproduct = act(width, element());
  linear_backward(down, job_.tokens, true, false, element());
  x.reset();
  dproduct.reset();
  dinput = act(config_.width, kFloat);
  if (const PlannedLinear* fused = find(layer, names.gate_up)) {
    const Held both = act(2 * width, element());
    return linear_backward(*fused, job_.tokens, dx, false, kFloat);
  }
  const PlannedLinear* gate = find(layer, names.gate);
  if (gate) linear_backward(*gate, job_.tokens, dx, false, kFloat);
  linear_backward(*find(layer, names.up), job_.tokens, dx, gate != nullptr, kFloat);
}

// The residual stream after the layer. Families with norms elsewhere (OPT 350M, BLOOM) keep about the same.
Held PassWalk::block_forward(const PlannedGroup& layer, const Held& x, std::vector<Held>* saved) {
  const BlockNames& names = config_.names.block;
  const int64_t width = config_.width;
  const auto half_input = [&](const std::string& norm, const Held& stream) {
    if (norm.empty()) return element() == kFloat ? stream : act(width, element());
    if (saved) saved->push_back(stream);
    return norm_forward(width, element(), saved);
  };
  const auto half_output = [&](const std::string& post_norm, const auto& run) {
    const Held y = act(width, post_norm.empty() && !in_parts_ ? element() : kFloat);
    run();
    sum_parts(job_.tokens);
    if (post_norm.empty()) return;
    const Held normed = norm_forward(width, kFloat, saved);
    if (saved) saved->push_back(y);
  };
  const Held attention_input = half_input(names.attention_norm, x);
  const Held middle = act(width, kFloat);
  half_output(names.post_attention_norm, [&] { attention_forward(layer, saved); });
  Held mlp_input = attention_input;
  if (!names.mlp_norm.empty() || !config_.parallel_residual) {
    mlp_input = half_input(names.mlp_norm, config_.parallel_residual ? x : middle);
  }
  // Without a norm its input is kept; else it is computed again from the norm's.
  if (saved && names.attention_norm.empty() && any_trainable(layer, attention_inputs()))
    saved->push_back(attention_input);
  if (saved && names.mlp_norm.empty() && !config_.parallel_residual && any_trainable(layer, mlp_inputs())) {
    saved->push_back(mlp_input);
  }
  const Held out = saved && !config_.parallel_residual ? act(width, kFloat) : middle;
  half_output(names.post_mlp_norm, [&] { mlp_forward(layer, saved); });
  return out;
}

void PassWalk::block_backward(const PlannedGroup& layer, bool dx) {
  const BlockNames& names = config_.names.block;
  const int64_t width = config_.width;
  const auto half_gradient = [&](const std::string& post_norm) {
    std::vector<Held> held;
    if (config_.residual_scale != 1) held.push_back(act(width, kFloat));
    if (!post_norm.empty()) held.push_back(act(width, kFloat));
    if (element() != kFloat) held.push_back(act(width, element()));
    return held;
  };
  Held mlp_dinput;
  const bool mlp_left_out = !names.attention_norm.empty() && (!names.mlp_norm.empty() || config_.parallel_residual);
  const Held mlp_input = mlp_left_out && any_trainable(layer, mlp_inputs()) ? act(width, element()) : Held();
  {
    const std::vector<Held> dy = half_gradient(names.post_mlp_norm);
    mlp_backward(layer, true, mlp_dinput);
  }
  sum_parts(job_.tokens);
  if (!config_.parallel_residual) mlp_dinput.reset();
  const bool below = dx || layer.vectors_trained;
  Held dinput;
  const bool attention_left_out = !names.attention_norm.empty() && any_trainable(layer, attention_inputs());
  const Held attention_input = attention_left_out ? act(width, element()) : Held();
  const std::vector<Held> dy = half_gradient(names.post_attention_norm);
  attention_backward(layer, below, dinput);
  if (below) sum_parts(job_.tokens);
}

// See ActivationStore and SpillFile: what was put away before has been written by now.
void PassWalk::put_away(Kept& kept, int64_t layer) {
  if (!layout_.offload) return;
  std::vector<Held> held = std::move(kept.layers[layer]);
  kept.layers.erase(layer);
  std::ranges::sort(held);
  held.erase(std::ranges::unique(held).begin(), held.end());
  std::erase(held, Held());
  std::vector<int64_t>& sizes = kept.filed[layer];
  for (const Held& block : held) {
    sizes.push_back(block->bytes);
    in_file_ += block->bytes;
    spill_.written += block->bytes;
  }
  spill_.file = std::max(spill_.file, in_file_);
  leaving_ = std::move(held);
  leaving_sizes_ = &sizes;
}

std::vector<Held> PassWalk::bring_back(Kept& kept, int64_t layer) {
  const auto filed = kept.filed.find(layer);
  if (filed == kept.filed.end()) {
    std::vector<Held> held = std::move(kept.layers[layer]);
    kept.layers.erase(layer);
    return held;
  }
  std::vector<Held> held;
  if (leaving_sizes_ == &filed->second) {
    held = std::move(leaving_);
    leaving_.clear();
    leaving_sizes_ = nullptr;
  } else {
    for (const int64_t bytes : filed->second) held.push_back(pool_.hold(MemoryUse::activations, bytes));
  }
  for (const int64_t bytes : filed->second) in_file_ -= bytes;
  kept.filed.erase(filed);
  return held;
}

Held PassWalk::forward(Kept& kept, Held x) {
  spill_.written = 0;
  if (range_.begin == 0) {
    hooks_.before_forward(-1);
    x = act(config_.width, kFloat);
    hooks_.after_forward(-1);
  }
  for (int64_t l = range_.begin; l < range_.end; ++l) {
    hooks_.before_forward(l);
    const bool keeps = l >= lowest_;
    std::vector<Held>* saved = keeps && !layout_.recomputes(l) ? &kept.layers[l] : nullptr;
    if (keeps && layout_.recomputes(l)) kept.layers[l].push_back(x);
    x = block_forward(model_.group(l), x, saved);
    if (keeps) put_away(kept, l);
    hooks_.after_forward(l);
  }
  return x;
}

void PassWalk::loss(Kept& kept, const Held& above) {
  (void)above;  // held by the caller meanwhile
  const bool below = lowest_ < range_.end || trainable_below(range_.begin);
  kept.gradient = below ? act(config_.width, kFloat) : Held();
  hooks_.before_backward(config_.layers);
  const int64_t vocabulary = config_.vocab_size, width = config_.width;
  const int64_t labelled = static_cast<int64_t>(static_cast<double>(job_.tokens) * job_.label_share);
  const bool trained = job_.everything || (config_.tied_head ? model_.input.tables.front().trained
                                                             : model_.group(config_.layers).linears.back().trained);
  const int64_t most = head_chunk_rows(job_.model.config.vocab_size, config_.embedding_width, trained);
  for (int64_t begin = 0; begin < labelled; begin += most) {
    const int64_t rows = std::min(most, labelled - begin);
    const auto hold = [&](int64_t columns, int64_t bytes) {
      return pool_.hold(MemoryUse::logits, rows * columns * bytes);
    };
    const Held x = hold(width, kFloat), normed = hold(width, element()), inv = hold(1, kFloat);
    Held logits = hold(vocabulary, kFloat);
    const Held losses = hold(1, kFloat), dlogits = element() == kFloat ? logits : hold(vocabulary, element());
    logits.reset();
    const Held dx = below ? hold(width, kFloat) : Held();
    if (below) sum_parts(rows);
    const Held dhidden = below ? hold(width, kFloat) : Held();
  }
  hooks_.after_backward(config_.layers);
}

void PassWalk::backward(Kept& kept) {
  for (int64_t l = range_.end; l-- > lowest_;) {
    hooks_.before_backward(l);
    std::vector<Held> saved = bring_back(kept, l);
    if (layout_.offload && l > lowest_) kept.layers[l - 1] = bring_back(kept, l - 1);
    if (layout_.recomputes(l)) {
      const Held input = saved.front();
      const Held out = block_forward(model_.group(l), input, &saved);
    }
    block_backward(model_.group(l), l > lowest_ || trainable_below(range_.begin));
    hooks_.after_backward(l);
  }
  if (range_.begin == 0 && model_.input.has_trainable()) {
    hooks_.before_backward(-1);
    hooks_.after_backward(-1);
  }
  kept.gradient.reset();
}

}  // namespace nibble::detail
