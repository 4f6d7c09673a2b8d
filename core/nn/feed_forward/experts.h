#pragma once
// The feed-forward of a mixture: a router gives every token k of E small MLPs, some families one more that all tokens
// share (Shazeer et al. 2017; Jiang et al. 2024; Dai et al. 2024).

#include <optional>

#include "nibble/core/nn/feed_forward/expert_linears.h"
#include "nibble/core/nn/feed_forward/experts_config.h"
#include "nibble/core/nn/feed_forward/router.h"

namespace nibble {

struct ExpertRoute;

/// y = sum over the chosen experts, in rising order, of weight * expert(x), + shared(x). With a latent width it is
/// from_latent(sum of weight * expert(to_latent(x))) + shared(x). An expert computes on the rows
/// of its tokens alone, all experts in one product: results are the same bits for any number of threads. With
/// Makers::experts some of the experts are here, and rows are exchanged with the ranks that have the others: results
/// are the same bits as with all of them.
class Experts final : public OfMembers<Experts, FeedForward> {
 public:
  Experts(const std::string& prefix, const ExpertNames& names, const ExpertsConfig& config, const Makers& makers);

  void forward(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& y,
               std::unique_ptr<SublayerSaved>* saved) override;
  void forward_save_only(const Tensor& x, const LayerContext& context, DType dtype, const StepContext& step,
                         std::unique_ptr<SublayerSaved>& saved) override;
  void backward(const Tensor& dy, const LayerContext& context, const StepContext& step, SublayerSaved& saved,
                Tensor* dx) override;
  /// The same where the router sees something else, router_x [T, D], whose gradient router_dx [T, D] f32 is added to.
  void forward_routed_by(const Tensor& x, const Tensor& router_x, const LayerContext& context, const StepContext& step,
                         Tensor& y, std::unique_ptr<SublayerSaved>* saved);
  void backward_routed_by(const Tensor& dy, const Tensor& router_x, const LayerContext& context,
                          const StepContext& step, SublayerSaved& saved, Tensor* dx, Tensor* router_dx);

  void each(const auto& use) {
    use(router_, to_latent_, from_latent_, before_);
    for (size_t e = 0; e < down_.each.size(); ++e) {
      for (ExpertLinears* linears : {&gate_up_, &gate_, &up_, &down_}) {
        if (!linears->empty()) use(linears->each[e]);
      }
    }
    use(after_, up_bias_, down_bias_, shared_, shared_gate_);
  }

 private:
  struct Saved;
  struct Part;
  struct Pass;

  bool inner_trainable() const;
  /// A new one; null where nothing is kept.
  Saved* saved_with_input(std::unique_ptr<SublayerSaved>* saved, const Tensor& x) const;
  void run(const Tensor& x, const Tensor& router_x, const StepContext& step, Tensor* sum, Saved* saved);
  void run_in_latent(const Tensor& x, const Tensor& router_x, const StepContext& step, Tensor& sum, Saved* saved);
  void run_backward(const Tensor& x, const Tensor& dy, const StepContext& step, Saved& saved, Tensor* dx,
                    Tensor& dweights);
  void latent_backward(const Tensor& dy, const StepContext& step, Saved& saved, Tensor* dx, Tensor& dweights);
  ExpertRows input(const Pass& pass) const;
  void add_up_bias(const Pass& pass, const Tensor& y) const;
  void project(const Pass& pass, Tensor& gate, Tensor& up, Part* saved);
  void project_backward(const Pass& pass, const Tensor& dgate, const Tensor& dup, Part& saved, const ExpertRows* dx,
                        const ExpertRows* dx_of_gate);
  Tensor activate(const Pass& pass, const Tensor& gate, const Tensor& up, bool keep) const;
  ExpertLinears::Biases down_biases(const Pass& pass) const;
  void run_experts(const Pass& pass, const ExpertRows* sum, Part* saved);
  void run_experts_backward(const Pass& pass, const Tensor& dy, Part& saved, const ExpertRows* dx,
                            const ExpertRows* dx_of_gate, Tensor& dweights);
  void run_exchanged(const Tensor& x, const Routed& routed, const StepContext& step, Tensor* sum, Saved* saved);
  void run_exchanged_backward(const Tensor& dy, const StepContext& step, Saved& saved, Tensor* dx, Tensor& dweights);
  void add_back(const char* what, Tensor& rows, const ExpertRoute& route, const Pass& own, Tensor& sum) const;
  std::vector<Parameter*> trained_by_rows();
  void down_bias_backward(const Pass& pass, const ExpertRows& dys, Tensor& dweight);
  Tensor gate_shared(const Tensor& x, const StepContext& step, Saved* saved);
  void add_shared(const Tensor& x, const LayerContext& context, const StepContext& step, Tensor& sum, Saved* saved);
  void shared_backward(const Tensor& dy, const LayerContext& context, const StepContext& step, Saved& saved,
                       Tensor* dx);

  ExpertsConfig config_;
  const ExpertExchange* exchange_;  // null: all experts are here
  Router router_;
  std::optional<Linear> to_latent_, from_latent_;
  ExpertLinears gate_up_, gate_, up_, down_;        // of the experts here; gate_up_ or the other two
  std::vector<Linear> before_, after_;              // of the other ranks' experts, without weights: see WeightElsewhere
  std::shared_ptr<Parameter> up_bias_, down_bias_;  // of gate_up_ or up_ [E, out], [E, D]
  std::unique_ptr<Mlp> shared_;
  std::optional<Linear> shared_gate_;
};

}  // namespace nibble
