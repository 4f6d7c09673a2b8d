#include "nibble/core/models/decoder.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <unordered_set>
#include <utility>

#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/models/decoder_parts.h"
#include "nibble/core/models/shared_modules.h"
#include "nibble/core/ops/cross_entropy.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/embedding.h"

namespace nibble {

namespace {

// The largest position of `positions` [T] i32.
int64_t last_position(const Tensor& positions) {
  const std::span<const int32_t> values = positions.span<const int32_t>();
  return values.empty() ? -1 : *std::max_element(values.begin(), values.end());
}

Tensor continued_positions(const Batch& batch, std::span<const Continued> continued, MemoryPool& pool) {
  Tensor positions = batch.positions.clone(pool.host());
  for (size_t i = 0; i < continued.size(); ++i) {
    const ops::AttentionSpan& document = batch.spans[i];
    for (int64_t t = document.q_begin; t < document.q_end; ++t) {
      positions.data<int32_t>()[t] += static_cast<int32_t>(continued[i].length);
    }
  }
  return positions;
}

// [T] f32 where the ops want it.
Tensor query_scales(const QueryScaling& scaling, const Tensor& positions, const StepContext& step) {
  Tensor scales = Tensor::zeros(step.pool().host(), positions.shape(), DType::f32, "scales of queries");
  for (int64_t t = 0; t < positions.numel(); ++t) {
    const int64_t steps = (positions.data<const int32_t>()[t] + scaling.offset) / scaling.length;
    scales.data<float>()[t] = static_cast<float>(1 + scaling.beta * std::log1p(static_cast<double>(steps)));
  }
  return scales.to(step.pool());
}

}  // namespace

struct Decoder::Impl {
  DecoderConfig config;
  LayerRange range;
  const LayerSharding* sharding = nullptr;
  const ExpertExchange* experts = nullptr;
  std::optional<InputStage> input;  // absent on later stages
  std::vector<Block> blocks;
  std::optional<DecoderHead> head;  // on the last stage
  std::vector<RotaryTable> rotary;
  int64_t recompute_below = 0;
  SpillFile* spill = nullptr;
  BlockHooks none;
  BlockHooks* hooks = &none;
  bool trainable_below = false;

  LayerContext context(const Batch& batch, const StepContext& step, std::span<const Continued> continued);
  bool input_trainable() const { return input && input->has_trainable(); }
  bool below_trainable() const { return input_trainable() || trainable_below; }
  size_t lowest_trainable() const;
  size_t recomputed() const {
    return static_cast<size_t>(std::clamp<int64_t>(recompute_below - range.begin, 0, range.end - range.begin));
  }
  int64_t layer(size_t l) const { return range.begin + static_cast<int64_t>(l); }
};

LayerContext Decoder::Impl::context(const Batch& batch, const StepContext& step, std::span<const Continued> continued) {
  LayerContext context{.positions = batch.positions,
                       .spans = batch.spans,
                       .rotary = {},
                       .query_scales = {},
                       .sharding = sharding,
                       .continued = continued};
  if (!continued.empty()) context.positions = continued_positions(batch, continued, step.pool());
  const int64_t last = last_position(context.positions);
  if (last >= config.position_limit()) {
    throw InputError("text",
                     "has a token at position " + std::to_string(last) + ", " +
                         (config.longest_text > 0 ? "but an indexer that chooses keys, which nibble cannot compute, "
                                                    "chooses all of them only below "
                                                  : "the model holds positions below ") +
                         std::to_string(config.position_limit()),
                     "shorten it");
  }
  for (RotaryTable& table : rotary) {
    context.rotary.push_back(table.at(context.positions, batch.spans, step.pool()));
  }
  if (config.query_scaling.beta != 0)
    context.query_scales = query_scales(config.query_scaling, context.positions, step);
  return context;
}

// The lowest own layer whose backward pass has to run.
size_t Decoder::Impl::lowest_trainable() const {
  if (below_trainable()) return 0;
  size_t l = 0;
  while (l < blocks.size() && !blocks[l].has_trainable()) ++l;
  return l;
}

struct DecoderPass::Impl {
  Decoder::Impl& decoder;
  const Batch& batch;
  StepContext step;
  bool training;
  KvCache* cache;
  std::vector<Continued> continued;
  PassState state;
  LayerContext context;
  size_t lowest;
  ActivationStore activations;
  InputSaved input;

  /// See Decoder::recompute_below.
  bool releases_weights() const { return decoder.recomputed() > 0 && batch.ids.dim(0) >= kMinTokensToUnmap; }
  void release_layer_pages(int64_t layer);
  void after_forward(int64_t layer);
  void after_backward(int64_t layer);
};

void DecoderPass::Impl::release_layer_pages(int64_t layer) {
  const auto drop = [](Linear& linear) {
    if (linear.weight().matrix() > 0) return;  // the first stands for the tensor
    for (const Tensor* tensor : linear.weight().storage()) release_pages(*tensor);
  };
  if (!releases_weights() || layer < 0) return;  // the embedding has been left piece by piece
  if (layer == decoder.config.layers) {
    if (decoder.head->streams) decoder.head->streams->visit_linears(drop);
    if (decoder.head->project) drop(*decoder.head->project);
    drop(decoder.head->linear);
  } else if (const auto l = static_cast<size_t>(layer - decoder.range.begin); l < decoder.recomputed()) {
    decoder.blocks[l].visit_linears(drop);
  }
}

void DecoderPass::Impl::after_forward(int64_t layer) {
  decoder.hooks->after_forward(layer);
  release_layer_pages(layer);
}

void DecoderPass::Impl::after_backward(int64_t layer) {
  decoder.hooks->after_backward(layer);
  release_layer_pages(layer);
}

DecoderPass::DecoderPass(Decoder& decoder, const Batch& batch, const StepContext& step, bool training) {
  Decoder::Impl& model = *decoder.impl_;
  impl_.reset(new Impl{model,
                       batch,
                       step,
                       training,
                       nullptr,
                       {},
                       {},
                       model.context(batch, step, {}),
                       model.lowest_trainable(),
                       ActivationStore(model.recomputed(), model.spill, model.blocks.size())});
  impl_->context.state = &impl_->state;
  if (step.training) impl_->step.row_keys = batch.row_keys;
}

DecoderPass::DecoderPass(Decoder& decoder, const Batch& batch, const StepContext& step, KvCache& cache) {
  Decoder::Impl& model = *decoder.impl_;
  std::vector<Continued> continued = cache.prepare(batch.spans, batch.sequences);
  const LayerContext context = model.context(batch, step, continued);
  impl_.reset(new Impl{model,
                       batch,
                       step,
                       false,
                       &cache,
                       std::move(continued),
                       {},
                       context,
                       model.blocks.size(),
                       ActivationStore(0, nullptr, 0)});
  impl_->context.state = &impl_->state;
}

DecoderPass::~DecoderPass() = default;

Tensor DecoderPass::forward(Tensor x) {
  Decoder::Impl& model = impl_->decoder;
  if (model.input) {
    model.hooks->before_forward(-1);
    const bool keep = impl_->training && model.input_trainable();
    x = model.input->forward(impl_->batch.ids, impl_->context.positions, impl_->step, keep ? &impl_->input : nullptr,
                             model.sharding, impl_->state, impl_->releases_weights() ? kMinTokensToUnmap : 0);
    impl_->after_forward(-1);
  }
  for (size_t l = 0; l < model.blocks.size(); ++l) {
    model.hooks->before_forward(model.layer(l));
    x = !impl_->training || l < impl_->lowest
            ? model.blocks[l].forward(x, impl_->context, impl_->step, nullptr,
                                      impl_->cache ? impl_->cache->layer(l) : nullptr)
            : impl_->activations.forward(l, model.blocks[l], x, impl_->context, impl_->step);
    impl_->after_forward(model.layer(l));
  }
  if (impl_->cache) impl_->cache->advance(impl_->batch.spans, impl_->continued);
  return x;
}

void DecoderPass::logits(const Tensor& x, const LogitSink& sink) {
  Decoder::Impl& model = impl_->decoder;
  NIBBLE_CHECK(model.head.has_value(), "the last stage has the head");
  model.hooks->before_forward(model.config.layers);
  model.head->logits(model.head->stream(x, impl_->step, nullptr), impl_->step, model.sharding, sink);
  impl_->after_forward(model.config.layers);
}

double DecoderPass::loss_sum(const Tensor& streams, float gradient_scale, Tensor& gradient, const TokenLoss& loss) {
  Decoder::Impl& model = impl_->decoder;
  NIBBLE_CHECK(model.head.has_value(), "the last stage has the head");
  const int64_t layer = model.config.layers, tokens = impl_->batch.ids.dim(0);
  Tensor x;  // the one that the head sees
  const auto head = [&](const HeadGradient* wanted, Tensor* log_probs) {
    return model.head->loss_sum(x, impl_->batch, impl_->step, model.sharding, loss.temperature, wanted, log_probs);
  };
  const Shape output = loss.wants_statistics ? Shape{1 + ops::kTokenStatistics, tokens} : Shape{tokens};
  const auto run = [&](HeadGradient* wanted) {
    if (loss.of_logits) return model.head->loss_sum(x, loss.of_logits, impl_->step, model.sharding, wanted);
    if (!loss) return head(wanted, nullptr);
    MemoryPool& host = impl_->step.pool().host();
    Tensor log_probs = Tensor::zeros(host, output, DType::f32, "log-probabilities");
    Tensor weights = Tensor::zeros(host, {tokens}, DType::f32, "weights of tokens");
    if (wanted && loss.weigh) {
      loss.weigh(weights);
      wanted->weights = weights;
      head(wanted, &log_probs);
      Tensor same = Tensor::zeros(host, {tokens}, DType::f32, "weights of tokens");
      return loss(log_probs, same);
    }
    head(nullptr, &log_probs);
    const double sum = loss(log_probs, weights);
    if (wanted) {
      wanted->weights = weights;
      head(wanted, nullptr);
    }
    return sum;
  };
  if (!impl_->training) {
    model.hooks->before_forward(layer);
    x = model.head->stream(streams, impl_->step, nullptr);
    const double sum = run(nullptr);
    impl_->after_forward(layer);
    return sum;
  }
  const bool below_head = impl_->lowest < model.blocks.size() || model.below_trainable();
  const bool joins = model.head->streams && (below_head || model.head->streams->has_trainable());
  gradient = Tensor();
  if (below_head || joins) {
    gradient = Tensor::zeros(impl_->step.pool(), {tokens, streams.dim(1)}, DType::f32, "residual gradient");
  }
  // Blocks of memory that wait for the layers' next pass make room for logits, and those for them.
  const auto make_room = [&] {
    if (impl_->releases_weights()) impl_->step.pool().trim();
  };
  make_room();
  model.hooks->before_backward(layer);
  StreamEnds::Saved joined;
  x = model.head->stream(streams, impl_->step, joins ? &joined : nullptr);
  HeadGradient wanted{.scale = gradient_scale, .weights = {}, .hidden = gradient ? &gradient : nullptr};
  const double sum = run(&wanted);
  if (joins) gradient = model.head->streams->join_backward(gradient, impl_->step, std::move(joined));
  impl_->after_backward(layer);
  make_room();
  return sum;
}

void DecoderPass::prepare_backward() {
  const size_t layers = impl_->decoder.blocks.size();
  if (impl_->lowest < layers) impl_->activations.fetch(layers - 1);
}

Tensor DecoderPass::backward(Tensor gradient) {
  Decoder::Impl& model = impl_->decoder;
  for (size_t l = model.blocks.size(); l-- > impl_->lowest;) {
    model.hooks->before_backward(model.layer(l));
    BlockSaved saved = impl_->activations.take(l, model.blocks[l], impl_->context, impl_->step);
    model.blocks[l].backward(gradient, impl_->context, impl_->step, std::move(saved),
                             l > impl_->lowest || model.below_trainable());
    impl_->after_backward(model.layer(l));
  }
  if (model.input_trainable()) {
    model.hooks->before_backward(-1);
    model.input->backward(impl_->batch.ids, impl_->batch.positions, impl_->step, std::move(impl_->input), gradient,
                          model.sharding, impl_->state);
    impl_->after_backward(-1);
  }
  return model.trainable_below ? gradient : Tensor();
}

Decoder::Decoder(DecoderConfig config, const LinearWeightMaker& make_linear, const ParameterMaker& make_parameter,
                 RankContext& rank, LayerRange range, const LayerSharding* sharding, const ExpertExchange* experts) {
  if (range.end < 0) range.end = config.layers;
  NIBBLE_CHECK(0 <= range.begin && range.begin <= range.end && range.end <= config.layers, "layers of a stage");
  config.check_stages(range.begin == 0 && range.end == config.layers);
  Makers makers{make_linear, make_parameter};
  if (sharding) makers = sharding->makers(makers, rank.pool);
  makers.experts = experts;
  std::optional<InputStage> input;
  if (range.begin == 0) input = make_input(config, makers);
  std::vector<Block> blocks;
  SharedModules shared(config);
  const Makers of_layers = shared.makers(makers);
  for (int64_t l = range.begin; l < range.end; ++l) {
    blocks.push_back(make_block(config, l, sharding, of_layers));
  }
  std::optional<DecoderHead> head;
  if (range.end == config.layers) {
    head = make_head(config, makers, input ? input->embedding.shared_table() : nullptr);
  }
  std::vector<RotaryTable> rotary(config.rope.begin(), config.rope.end());
  impl_ = std::shared_ptr<Impl>(new Impl{.config = std::move(config),
                                         .range = range,
                                         .sharding = sharding,
                                         .experts = experts,
                                         .input = std::move(input),
                                         .blocks = std::move(blocks),
                                         .head = std::move(head),
                                         .rotary = std::move(rotary)});
  if (sharding) visit_linears([&](Linear& linear) { linear.set_shard(sharding->shard(linear.name())); });
}

const DecoderConfig& Decoder::config() const { return impl_->config; }
const LayerSharding* Decoder::sharding() const { return impl_->sharding; }
const ExpertExchange* Decoder::experts() const { return impl_->experts; }
LayerRange Decoder::range() const { return impl_->range; }
bool Decoder::has_embedding() const { return impl_->input.has_value(); }
bool Decoder::has_head() const { return impl_->head.has_value(); }
void Decoder::set_trainable_below(bool trainable) { impl_->trainable_below = trainable; }
void Decoder::set_vocab_size(int64_t rows) { impl_->config.vocab_size = rows; }
void Decoder::recompute_below(int64_t layer) { impl_->recompute_below = layer; }
void Decoder::set_recompute(Recompute recompute) {
  recompute_below(recompute == Recompute::block ? config().layers : 0);
}
void Decoder::set_spill(SpillFile* spill) { impl_->spill = spill; }
void Decoder::set_hooks(BlockHooks* hooks) { impl_->hooks = hooks ? hooks : &impl_->none; }

void Decoder::visit(const ParameterVisitor& visitor) {
  std::unordered_set<const Parameter*> seen;
  const ParameterVisitor once = [&](Parameter& parameter) {
    if (seen.insert(&parameter).second) visitor(parameter);
  };
  if (impl_->input) impl_->input->visit(once);
  for (Block& block : impl_->blocks) block.visit(once);
  if (!impl_->head) return;
  DecoderHead& head = *impl_->head;
  if (head.streams) head.streams->visit(once);
  if (head.norm) head.norm->visit(once);
  if (head.project) head.project->visit(once);
  head.linear.visit(once);
}

void Decoder::visit_embeddings(const std::function<void(Embedding&)>& visitor) {
  if (!impl_->input) return;
  visitor(impl_->input->embedding);
  if (impl_->input->positions) visitor(*impl_->input->positions);
  if (impl_->input->layer_inputs) visitor(impl_->input->layer_inputs->table);
}

void Decoder::visit_linears(const std::function<void(Linear&)>& visitor) {
  if (impl_->input) impl_->input->visit_linears(visitor);
  for (Block& block : impl_->blocks) block.visit_linears(visitor);
  if (!impl_->head) return;
  if (impl_->head->streams) impl_->head->streams->visit_linears(visitor);
  if (impl_->head->project) visitor(*impl_->head->project);
  visitor(impl_->head->linear);
}

void Decoder::set_int8(MemoryPool& pool) {
  for (Block& block : impl_->blocks) block.visit_linears([&](Linear& linear) { linear.set_int8(&pool); });
}

KvCache Decoder::make_cache(const StepContext& step, int64_t sequences) const {
  std::vector<std::unique_ptr<MixerCache>> layers;
  for (const Block& block : impl_->blocks) {
    layers.push_back(block.make_cache(sequences, step.compute_dtype, step.pool()));
  }
  return {std::move(layers), sequences};
}

void Decoder::logits(const Batch& batch, const StepContext& step, const LogitSink& sink, KvCache* cache) {
  DecoderPass pass = cache ? DecoderPass(*this, batch, step, *cache) : DecoderPass(*this, batch, step, false);
  pass.logits(pass.forward({}), sink);
}

Tensor Decoder::next_logits(const Batch& batch, const StepContext& step, KvCache& cache) {
  DecoderPass pass(*this, batch, step, cache);
  return pass.last_logits(pass.forward({}));
}

Tensor DecoderPass::pick(const Tensor& x, std::span<const int32_t> tokens) const {
  const auto count = static_cast<int64_t>(tokens.size());
  const int64_t all = impl_->batch.ids.dim(0), streams = x.dim(0) / all;
  if (count == 1 && streams == 1) return x.rows(tokens[0], tokens[0] + 1);
  MemoryPool& pool = impl_->step.pool();
  const Tensor picked = Tensor::from<int32_t>(pool.host(), {count}, tokens);
  Tensor rows = Tensor::empty(pool, {streams * count, x.dim(1)}, DType::f32, "head input");
  for (int64_t n = 0; n < streams; ++n) {
    Tensor own = rows.rows(n * count, (n + 1) * count);
    ops::gather_rows(x.rows(n * all, (n + 1) * all), picked, own);
  }
  return rows;
}

Tensor DecoderPass::last_logits(const Tensor& x) {
  std::vector<int32_t> last;
  for (const ops::AttentionSpan& document : impl_->batch.spans) {
    last.push_back(static_cast<int32_t>(document.q_end - 1));
  }
  const auto count = static_cast<int64_t>(last.size());
  MemoryPool& pool = impl_->step.pool();
  const Tensor rows = count < impl_->batch.ids.dim(0) ? pick(x, last) : x;
  Tensor result;
  logits(rows, [&](int64_t row, const Tensor& chunk) {
    if (chunk.dim(0) == count) {
      result = chunk;
      return;
    }
    if (!result) result = Tensor::empty(pool, {count, chunk.dim(1)}, DType::f32, "logits");
    Tensor part = result.rows(row, row + chunk.dim(0));
    ops::cast(chunk, part);
  });
  return result;
}

double Decoder::loss_sum(const Batch& batch, const StepContext& step, const TokenLoss& loss) {
  DecoderPass pass(*this, batch, step, false);
  Tensor none;
  return pass.loss_sum(pass.forward({}), 1.0f, none, loss);
}

double Decoder::loss_sum_and_gradients(const Batch& batch, const StepContext& step, float gradient_scale,
                                       const TokenLoss& loss) {
  DecoderPass pass(*this, batch, step, true);
  Tensor gradient;
  const double sum = pass.loss_sum(pass.forward({}), gradient_scale, gradient, loss);
  pass.backward(std::move(gradient));
  return sum;
}

void Decoder::idle_forward(bool training, bool head) {
  BlockHooks& hooks = *impl_->hooks;
  const auto touch = [&](int64_t layer) {
    hooks.before_forward(layer);
    hooks.after_forward(layer);
  };
  if (impl_->input) touch(-1);
  for (size_t l = 0; l < impl_->blocks.size(); ++l) touch(impl_->layer(l));
  if (!impl_->head || !head) return;
  if (!training) return touch(impl_->config.layers);
  hooks.before_backward(impl_->config.layers);
  hooks.after_backward(impl_->config.layers);
}

void Decoder::idle_backward() {
  const auto touch = [&](int64_t layer) {
    impl_->hooks->before_backward(layer);
    impl_->hooks->after_backward(layer);
  };
  for (size_t l = impl_->blocks.size(); l-- > impl_->lowest_trainable();) touch(impl_->layer(l));
  if (impl_->input_trainable()) touch(-1);
}

}  // namespace nibble
