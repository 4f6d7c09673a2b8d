#include "nibble/core/models/input_stage.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "nibble/core/base/philox.h"
#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/ops/elementwise.h"

namespace nibble {

namespace {

constexpr uint32_t kNoisePurpose = 0x6E656674;  // "neft"

// NEFTune (Jain et al. 2023) as Transformers' hook on the embedding does: rows [T, E] of x += scale times uniform noise
// of at most alpha / sqrt(L E), L being the tokens of a row's text. It depends on seed, step, sample and position only.
void add_noise(const Tensor& at, const StepContext& step, float scale, Tensor& x) {
  const std::span<const int32_t> positions = at.span<const int32_t>();
  const std::span<const int64_t> keys = step.row_keys.span<const int64_t>();
  const uint64_t seed = PhiloxStream(step.rank.seed, kNoisePurpose, step.step).next_u64();
  for (size_t begin = 0, end; begin < positions.size(); begin = end) {
    end = begin + 1;
    while (end < positions.size() && positions[end] > 0) ++end;
    Tensor rows = x.rows(static_cast<int64_t>(begin), static_cast<int64_t>(end));
    Tensor noise = Tensor::empty(step.pool(), rows.shape(), DType::f32, "noise of embeddings");
    const auto most = static_cast<float>(step.neftune_noise_alpha / std::sqrt(static_cast<double>(rows.numel())));
    ops::fill_uniform(noise, -most, most, seed, static_cast<uint64_t>(keys[begin]));
    ops::add(noise, rows, scale);
  }
}

// Sines, then cosines of every position: [T, D] f32.
Tensor waves(const Tensor& at, int64_t offset, int64_t width, FixedPositions kind, const StepContext& step) {
  const int64_t half = width / 2;
  std::vector<float> values;
  for (const int32_t position : at.span<const int32_t>()) {
    const float place = static_cast<float>(position + offset);
    const size_t begin = values.size();
    values.resize(begin + static_cast<size_t>(width), 0.0f);
    for (int64_t i = 0; i < half; ++i) {
      const double exponent = kind == FixedPositions::xglm ? static_cast<double>(i) / static_cast<double>(half - 1)
                                                           : 2 * static_cast<double>(i) / static_cast<double>(width);
      const float angle = place * static_cast<float>(std::pow(10000.0, -exponent));
      values[begin + static_cast<size_t>(i)] = std::sin(angle);
      values[begin + static_cast<size_t>(half + i)] = std::cos(angle);
    }
  }
  return Tensor::from<float>(step.pool(), {at.numel(), width}, values);
}

}  // namespace

bool InputStage::has_trainable() const {
  return embedding.has_trainable() || (positions && positions->has_trainable()) ||
         (project && project->has_trainable()) || (norm && norm->has_trainable()) ||
         (layer_inputs && layer_inputs->has_trainable()) || (streams && streams->has_trainable());
}

Tensor InputStage::forward(const Tensor& ids, const Tensor& at, const StepContext& step, InputSaved* saved,
                           const LayerSharding* sharding, PassState& state, int64_t piece) {
  const int64_t tokens = ids.dim(0);
  const auto make = [&](int64_t width, const std::string& what) {
    return Tensor::empty(step.pool(), {tokens, width}, DType::f32, what);
  };
  const auto release = [&] {
    if (piece > 0) release_pages(embedding.table().value);
  };
  Tensor x = make(embedding.table().value.dim(1), "embeddings");
  if (sharding) {
    sharding->embed(embedding, ids, embedding_scale, x, step);
    release();
  } else {
    for (int64_t t = 0, end; t < tokens; t = end) {
      end = piece > 0 ? std::min(tokens, t + piece) : tokens;
      Tensor rows = x.rows(t, end);
      embedding.forward(ids.rows(t, end), 0, embedding_scale, rows, step);
      release();
    }
  }
  if (step.training && step.neftune_noise_alpha > 0) add_noise(at, step, noise_scale, x);
  if (project) {
    const Tensor in = in_compute_dtype(x, step);
    x = make(project->out_features(), "projected embeddings");
    project->forward(in, x, step, saved ? &saved->project : nullptr);
  }
  if (positions) {
    Tensor learned = make(x.dim(1), "positions");
    positions->forward(at, position_offset, 1.0f, learned, step);
    ops::add(learned, x);
  }
  if (fixed_positions != FixedPositions::none) {
    ops::add(waves(at, position_offset, x.dim(1), fixed_positions, step), x);
  }
  if (norm) {
    Tensor normed = make(x.dim(1), "norm of the embeddings");
    norm->forward(x, normed, step, saved ? &saved->norm : nullptr);
    x = normed;
  }
  if (layer_inputs) {
    state.layer_inputs = layer_inputs->forward(ids, x, step, saved ? &saved->layer_inputs : nullptr);
    state.layer_input_gradients.resize(state.layer_inputs.size());
  }
  if (read_again) {
    state.embeddings = x;
    state.embeddings_train = saved != nullptr;
  }
  if (streams) x = streams->split(x, step, saved ? &saved->streams : nullptr);
  return x;
}

void InputStage::backward(const Tensor& ids, const Tensor& at, const StepContext& step, InputSaved&& saved,
                          Tensor gradient, const LayerSharding* sharding, PassState& state) {
  const auto make = [&](int64_t width) {
    return Tensor::zeros(step.pool(), {ids.dim(0), width}, DType::f32, "gradient of embeddings");
  };
  if (streams) gradient = streams->split_backward(gradient, step, std::move(saved.streams));
  if (state.embedding_gradient) ops::add(state.embedding_gradient, gradient);
  if (layer_inputs) {
    layer_inputs->backward(ids, state.layer_input_gradients, step, std::move(saved.layer_inputs), gradient);
  }
  if (norm) {
    Tensor dx = make(gradient.dim(1));
    norm->backward(gradient, step, std::move(saved.norm), dx);
    gradient = dx;
  }
  if (positions) positions->backward(at, position_offset, 1.0f, gradient, step);
  if (project) {
    Tensor dx = make(project->in_features());
    project->backward(in_compute_dtype(gradient, step), step, std::move(saved.project),
                      embedding.has_trainable() ? &dx : nullptr, false);
    gradient = dx;
  }
  if (!embedding.has_trainable()) return;
  if (sharding) return sharding->embed_backward(embedding, ids, embedding_scale, gradient, step);
  embedding.backward(ids, 0, embedding_scale, gradient, step);
}

void InputStage::visit(const ParameterVisitor& visitor) {
  embedding.visit(visitor);
  if (project) project->visit(visitor);
  if (positions) positions->visit(visitor);
  if (norm) norm->visit(visitor);
  if (layer_inputs) layer_inputs->visit(visitor);
  if (streams) streams->visit(visitor);
}

void InputStage::visit_linears(const std::function<void(Linear&)>& visitor) {
  if (project) visitor(*project);
  if (layer_inputs) visitor(layer_inputs->projection);
  if (streams) streams->visit_linears(visitor);
}

}  // namespace nibble
