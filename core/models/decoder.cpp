#include "nibble/core/models/decoder.h"

#include <algorithm>
#include <utility>

#include "nibble/core/models/head_loss.h"
#include "nibble/core/models/input_stage.h"

namespace nibble {

namespace {

// The largest position of `positions` [T] i32.
int64_t last_position(const Tensor& positions) {
  const std::span<const int32_t> values = positions.span<const int32_t>();
  return values.empty() ? -1 : *std::max_element(values.begin(), values.end());
}

Tensor continued_positions(int64_t begin, int64_t count, MemoryPool& pool) {
  Tensor positions = Tensor::empty(pool, {count}, DType::i32, "positions");
  for (int64_t i = 0; i < count; ++i) positions.data<int32_t>()[i] = static_cast<int32_t>(begin + i);
  return positions;
}

}  // namespace

struct Decoder::Impl {
  DecoderConfig config;
  InputStage input;
  std::vector<Block> blocks;
  DecoderHead head;
  std::vector<RotaryTable> rotary;
  Recompute recompute = Recompute::none;
  BlockHooks none;
  BlockHooks* hooks = &none;

  LayerContext context(const Batch& batch, const StepContext& step, const KvCache* cache);
  Tensor hidden(const Batch& batch, const StepContext& step, KvCache* cache);
  size_t lowest_trainable() const;
  double train(const Batch& batch, const StepContext& step, float gradient_scale);
};

LayerContext Decoder::Impl::context(const Batch& batch, const StepContext& step, const KvCache* cache) {
  LayerContext context{.positions = batch.positions, .spans = batch.spans, .rotary = {}};
  if (cache) {
    NIBBLE_CHECK(batch.spans.size() == 1, "a cache holds one document");
    context.positions = continued_positions(cache->length(), batch.ids.dim(0), step.pool());
  }
  const int64_t last = last_position(context.positions);
  if (last >= config.position_limit()) {
    throw InputError("text",
                     "has a token at position " + std::to_string(last) + ", the model holds positions below " +
                         std::to_string(config.max_positions),
                     "shorten it");
  }
  for (RotaryTable& table : rotary) {
    context.rotary.push_back(table.at(context.positions, batch.spans, step.pool()));
  }
  return context;
}

// The residual stream after the last layer, for evaluation and generation.
Tensor Decoder::Impl::hidden(const Batch& batch, const StepContext& step, KvCache* cache) {
  const LayerContext layer_context = context(batch, step, cache);
  if (cache) cache->reserve(cache->length() + batch.ids.dim(0));
  Tensor x = input.forward(batch.ids, layer_context.positions, step, nullptr);
  for (size_t l = 0; l < blocks.size(); ++l) {
    hooks->before_forward(static_cast<int64_t>(l));
    x = blocks[l].forward(x, layer_context, step, nullptr, cache ? &cache->layer(l) : nullptr);
    hooks->after_forward(static_cast<int64_t>(l));
  }
  return x;
}

// The lowest layer whose backward pass has to run.
size_t Decoder::Impl::lowest_trainable() const {
  if (input.has_trainable()) return 0;
  size_t l = 0;
  while (l < blocks.size() && !blocks[l].has_trainable()) ++l;
  return l;
}

double Decoder::Impl::train(const Batch& batch, const StepContext& step, float gradient_scale) {
  const LayerContext layer_context = context(batch, step, nullptr);
  const size_t lowest = lowest_trainable();
  ActivationStore activations(recompute, blocks.size());
  InputSaved input_saved;
  Tensor x = input.forward(batch.ids, layer_context.positions, step, input.has_trainable() ? &input_saved : nullptr);
  for (size_t l = 0; l < blocks.size(); ++l) {
    hooks->before_forward(static_cast<int64_t>(l));
    x = l < lowest ? blocks[l].forward(x, layer_context, step, nullptr)
                   : activations.forward(l, blocks[l], x, layer_context, step);
    hooks->after_forward(static_cast<int64_t>(l));
  }

  const bool below_head = lowest < blocks.size() || input.has_trainable();
  Tensor gradient = below_head ? Tensor::zeros(step.pool(), x.shape(), DType::f32, "residual gradient") : Tensor();
  const double loss = head.loss_sum(x, batch, step, true, gradient_scale, below_head ? &gradient : nullptr);
  x = {};
  for (size_t l = blocks.size(); l-- > lowest;) {
    hooks->before_backward(static_cast<int64_t>(l));
    BlockSaved saved = activations.take(l, blocks[l], layer_context, step);
    blocks[l].backward(gradient, layer_context, step, std::move(saved), l > lowest || input.has_trainable());
    hooks->after_backward(static_cast<int64_t>(l));
  }
  if (input.has_trainable()) {
    input.backward(batch.ids, batch.positions, step, std::move(input_saved), gradient);
  }
  return loss;
}

namespace {

InputStage make_input(const DecoderConfig& config, const Makers& makers) {
  const TensorNames& names = config.names;
  InputStage input{
      .embedding = Embedding(
          names.embedding, makers.parameter(names.embedding + ".weight", {config.vocab_size, config.embedding_width}))};
  input.embedding_scale = config.embedding_scale;
  input.position_offset = config.position_offset;
  if (!names.project_in.empty()) {
    input.project = makers.make_linear(names.project_in, config.width, config.embedding_width, false);
  }
  if (!names.positions.empty()) {
    const Shape shape = {config.max_positions + config.position_offset, config.width};
    input.positions.emplace(names.positions, makers.parameter(names.positions + ".weight", shape));
  }
  if (!names.embedding_norm.empty())
    input.norm.emplace(names.embedding_norm, config.width, config.norm, makers.parameter);
  return input;
}

DecoderHead make_head(const DecoderConfig& config, const Makers& makers, const std::shared_ptr<Parameter>& embedding) {
  const TensorNames& names = config.names;
  std::optional<Norm> norm;
  if (!names.final_norm.empty()) norm.emplace(names.final_norm, config.width, config.norm, makers.parameter);
  std::optional<Linear> project;
  if (!names.project_out.empty()) {
    project = makers.make_linear(names.project_out, config.embedding_width, config.width, false);
  }
  Linear linear = [&] {
    if (!config.tied_head) {
      return makers.make_linear(names.head, config.vocab_size, config.embedding_width, config.head_bias);
    }
    return Linear(names.head, std::make_unique<DenseWeight>(embedding),
                  config.head_bias ? makers.parameter(names.head + ".bias", {config.vocab_size}) : nullptr);
  }();
  return {.norm = std::move(norm),
          .project = std::move(project),
          .linear = std::move(linear),
          .scale = config.logit_scale,
          .softcap = config.logit_softcap};
}

}  // namespace

Decoder::Decoder(DecoderConfig config, const LinearWeightMaker& make_linear, const ParameterMaker& make_parameter,
                 RankContext&) {
  const Makers makers{make_linear, make_parameter};
  const TensorNames& names = config.names;
  InputStage input = make_input(config, makers);
  std::vector<Block> blocks;
  for (int64_t l = 0; l < config.layers; ++l) {
    blocks.emplace_back(names.layers + std::to_string(l) + ".", names.block, config.block(l), makers);
  }
  std::vector<RotaryTable> rotary(config.rope.begin(), config.rope.end());
  DecoderHead head = make_head(config, makers, input.embedding.shared_table());
  impl_ = std::shared_ptr<Impl>(new Impl{.config = std::move(config),
                                         .input = std::move(input),
                                         .blocks = std::move(blocks),
                                         .head = std::move(head),
                                         .rotary = std::move(rotary)});
}

const DecoderConfig& Decoder::config() const { return impl_->config; }
void Decoder::set_vocab_size(int64_t rows) { impl_->config.vocab_size = rows; }
void Decoder::set_recompute(Recompute recompute) { impl_->recompute = recompute; }
void Decoder::set_hooks(BlockHooks* hooks) { impl_->hooks = hooks ? hooks : &impl_->none; }

void Decoder::visit(const ParameterVisitor& visitor) {
  impl_->input.visit(visitor);
  for (Block& block : impl_->blocks) block.visit(visitor);
  if (impl_->head.norm) impl_->head.norm->visit(visitor);
  if (impl_->head.project) impl_->head.project->visit(visitor);
  impl_->head.linear.visit([&](Parameter& parameter) {
    if (&parameter != &impl_->input.embedding.table()) visitor(parameter);
  });
}

void Decoder::visit_embeddings(const std::function<void(Embedding&)>& visitor) {
  visitor(impl_->input.embedding);
  if (impl_->input.positions) visitor(*impl_->input.positions);
}

void Decoder::visit_linears(const std::function<void(Linear&)>& visitor) {
  if (impl_->input.project) visitor(*impl_->input.project);
  for (Block& block : impl_->blocks) block.visit_linears(visitor);
  if (impl_->head.project) visitor(*impl_->head.project);
  visitor(impl_->head.linear);
}

KvCache Decoder::make_cache(const StepContext& step) const {
  const DecoderConfig& config = impl_->config;
  return KvCache(config.layers, config.kv_heads * config.head_size, step.compute_dtype, step.pool());
}

void Decoder::logits(const Batch& batch, const StepContext& step,
                     const std::function<void(int64_t row, const Tensor& logits)>& sink, KvCache* cache,
                     bool only_last) {
  Tensor x = impl_->hidden(batch, step, cache);
  const int64_t rows = x.dim(0);
  const int64_t first = only_last ? std::max<int64_t>(rows - 1, 0) : 0;
  impl_->head.logits(x.rows(first, rows), step, [&](int64_t row, const Tensor& logits) { sink(first + row, logits); });
}

double Decoder::loss_sum(const Batch& batch, const StepContext& step) {
  return impl_->head.loss_sum(impl_->hidden(batch, step, nullptr), batch, step, false, 1.0f, nullptr);
}

double Decoder::loss_sum_and_gradients(const Batch& batch, const StepContext& step, float gradient_scale) {
  StepContext inner = step;
  if (step.training) inner.row_keys = batch.row_keys;
  return impl_->train(batch, inner, gradient_scale);
}

}  // namespace nibble
