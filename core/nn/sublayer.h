#pragma once
// What the two sublayers of a layer, mixer and feed-forward, have in common.

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "nibble/core/nn/linear.h"
#include "nibble/core/nn/mixers/rotary.h"
#include "nibble/core/ops/attention.h"

namespace nibble {

class LayerSharding;

using TensorVisitor = std::function<void(Tensor&)>;

/// Where the tokens of one document go on from: a sequence in the caches, and how many of its tokens these hold.
struct Continued {
  int64_t sequence = 0, length = 0;
};

/// Keys and values that later layers read too, and the gradients that those give them.
struct SharedKeys {
  Tensor k, v;                            ///< as attention sees them
  std::vector<ops::AttentionSpan> spans;  ///< and where it sees them
  Tensor dk, dv;                          ///< f32, undefined until a layer has added to them
};

/// What the layers of one pass hand each other beside the residual stream.
struct PassState {
  std::map<int64_t, SharedKeys> keys;  ///< by the layer whose they are
  std::vector<Tensor> layer_inputs;    ///< [layers] of [T, P] f32: an input of its own for each (Gemma 4)
  std::vector<Tensor> layer_input_gradients;
  Tensor embeddings;              ///< [T, D] f32, where layers read them again (Zamba 2)
  bool embeddings_train = false;  ///< whether anything has a use for their gradient
  Tensor embedding_gradient;      ///< f32, undefined until a layer has added to it
};

/// What every layer of one pass sees of the tokens.
struct LayerContext {
  Tensor positions;                           ///< [T] i32, in the document
  std::span<const ops::AttentionSpan> spans;  ///< documents
  std::vector<RotaryView> rotary;             ///< one for each kind of layer
  Tensor query_scales;                        ///< [T] f32, where queries are scaled by their position
  const LayerSharding* sharding = nullptr;    ///< null: the weights are not sharded
  std::span<const Continued> continued = {};  ///< with caches: one for each of `spans`
  PassState* state = nullptr;                 ///< where layers hand each other something
};

/// What a sublayer keeps from forward to backward.
class SublayerSaved {
 public:
  virtual ~SublayerSaved() = default;
  /// Every tensor there is, in a fixed order.
  virtual void visit(const TensorVisitor& visitor) = 0;
  /// The sublayer's input: whether it is kept, and giving it (back). A Block takes it out where it can compute it
  /// again.
  virtual bool has_input() const = 0;
  virtual void set_input(const Tensor& x) = 0;
};

/// saved, if it is not null, becomes a new Saved; returns that, or null.
template <typename Saved>
Saved* new_saved(std::unique_ptr<SublayerSaved>* saved) {
  if (!saved) return nullptr;
  auto result = std::make_unique<Saved>();
  Saved* kept = result.get();
  *saved = std::move(result);
  return kept;
}

/// Whatever has parameters.
class Module {
 public:
  virtual ~Module() = default;
  virtual bool has_trainable() const = 0;
  virtual void visit(const ParameterVisitor& visitor) = 0;
  virtual void visit_linears(const std::function<void(Linear&)>& visitor) = 0;
};

class Sublayer : public Module {
 public:
  /// y [T, D] (f32 or bf16) from x [T, D] in the compute dtype. saved: becomes what backward needs; null: inference.
  virtual void forward(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
                       std::unique_ptr<SublayerSaved>* saved) = 0;
  /// What forward would save, the same bits, without the products that only y needs; dtype: of y.
  virtual void forward_save_only(const Tensor& x, const LayerContext& context, DType dtype, const StepContext& step,
                                 std::unique_ptr<SublayerSaved>& saved) {
    Tensor y = Tensor::empty(step.pool(), x.shape(), dtype, "layer output");
    forward(x, context, step, y, &saved);
  }
  /// dx [T, D] f32 = input gradient unless null, made here where it is undefined; dy [T, D] in the compute dtype.
  /// Accumulates the gradients of everything trainable; uses up what is in `saved`.
  virtual void backward(const Tensor& dy, const LayerContext& context, const StepContext& step, SublayerSaved& saved,
                        Tensor* dx) = 0;
};

// What follows from one list of members: everything that visits them.

/// use(member), or of what pointers, optionals and containers hold, if they hold something.
void for_each_member(auto& member, const auto& use) {
  if constexpr (requires { member.begin(); }) {
    for (auto& element : member) for_each_member(element, use);
  } else if constexpr (requires { member.second; }) {
    for_each_member(member.second, use);
  } else if constexpr (requires { *member; }) {
    if (member) for_each_member(*member, use);
  } else {
    use(member);
  }
}

/// A module with a member each(use) that calls use(its linears, norms, parameters and other modules), in the order in
/// which parameters are visited.
template <typename Self, typename Base = Module>
class OfMembers : public Base {
 public:
  bool has_trainable() const override { return trains_beside(nullptr); }
  void visit(const ParameterVisitor& visitor) override {
    each_member([&](auto& member) {
      if constexpr (requires { visitor(member); }) {
        visitor(member);
      } else {
        member.visit(visitor);
      }
    });
  }
  void visit_linears(const std::function<void(Linear&)>& visitor) override {
    each_member([&](auto& member) {
      if constexpr (requires { visitor(member); }) {
        visitor(member);
      } else if constexpr (requires { member.visit_linears(visitor); }) {
        member.visit_linears(visitor);
      }
    });
  }

 protected:
  /// Whether anything but this Linear has a gradient.
  bool trains_beside(const Linear* linear) const {
    bool trains = false;
    const_cast<OfMembers*>(this)->each_member([&](const auto& member) {
      if constexpr (requires { member.has_trainable(); }) {
        trains = trains || (static_cast<const void*>(&member) != linear && member.has_trainable());
      } else {
        trains = trains || member.trainable;
      }
    });
    return trains;
  }

 private:
  void each_member(const auto& use) {
    static_cast<Self*>(this)->each([&](auto&... members) { (for_each_member(members, use), ...); });
  }
};

/// What is kept, with a member each(use) that calls use(its tensors and what other modules keep), in their order, and
/// inputs(use) with those that are the sublayer's input, or have it in them.
template <typename Self>
class SavedMembers : public SublayerSaved {
 public:
  void visit(const TensorVisitor& visitor) override {
    const auto use = [&](auto& member) {
      if constexpr (requires { member.visit(visitor); }) {
        member.visit(visitor);
      } else if (member) {
        visitor(member);
      }
    };
    self().each([&](auto&... members) { (for_each_member(members, use), ...); });
  }
  bool has_input() const override {
    bool has = false;
    const auto use = [&](const auto& input) {
      if constexpr (requires { input->has_input(); }) {
        has = has || input->has_input();
      } else {
        has = has || input.defined();
      }
    };
    const_cast<SavedMembers*>(this)->self().inputs([&](const auto&... inputs) { (use(inputs), ...); });
    return has;
  }
  void set_input(const Tensor& x) override {
    const auto use = [&](auto& input) {
      if constexpr (requires { input->set_input(x); }) {
        input->set_input(x);
      } else {
        input = x;
      }
    };
    self().inputs([&](auto&... inputs) { (use(inputs), ...); });
  }

 private:
  Self& self() { return static_cast<Self&>(*this); }
};

}  // namespace nibble
