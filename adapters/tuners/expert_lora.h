#pragma once
// LoRA on a tensor of all experts, as PEFT keeps it for target_parameters (peft/tuners/lora/layer.py, ParamWrapper): A
// [E R, in] has R rows for expert 0, then for expert 1, ...; B [out, R E] has its columns interleaved, expert e has e,
// E + e, ... . Where gate and up are Linears of their own, they share A and have some rows of B each. Where PEFT takes
// inputs for outputs (ExpertPart::swapped), x B A is added instead of x A^T B^T.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nibble/adapters/options.h"
#include "nibble/adapters/peft/peft_directory.h"
#include "nibble/core/models/families/expert_tensors.h"
#include "nibble/core/nn/feed_forward/grouped_forms.h"
#include "nibble/core/nn/linear.h"

namespace nibble {

class Decoder;

/// Names of A and B in a PEFT file, without its prefix: of two tensors of one module the first stands inside the second
/// (`base_layer`).
std::string expert_lora_stem(const DecoderConfig& config, const std::string& tensor,
                             const std::vector<std::string>& adapted);

/// What PEFT makes of "all-linear", and of the names of an expert's Linears, for mixtures whose tensors it fuses: the
/// two join target_parameters, gate_up_proj with twice the rank and alpha, and the router's weight too; Linears of
/// dense and shared MLPs with those names get nothing. What is translated already, and options of other models, stay as
/// they are. Throws UsageError where gate and up are not both named.
AdapterOptions translate_for_experts(AdapterOptions options, const DecoderConfig& config);

/// Whether the Linear of this name is a router that PEFT meets as a parameter, "gate.weight", and not as a Linear (as
/// in PhiMoE and Hunyuan).
bool is_parameter_router(const DecoderConfig& config, const std::string& linear);

/// The paths among `linears` that target_modules choose from: not those of experts and routers, and with all-linear not
/// those that translate_for_experts leaves out.
std::vector<std::string> modules_to_choose(const DecoderConfig& config, const AdapterOptions& options,
                                           const std::vector<std::string>& linears);

/// The tensors of experts, and the routers (by the path of their Linear), that target_parameters name. Throws
/// UsageError for an entry that names nothing and for options that such tensors exclude.
struct ExpertTargets {
  std::vector<std::string> tensors, routers;
};
ExpertTargets match_target_parameters(const DecoderConfig& config, const AdapterOptions& options,
                                      const std::vector<std::string>& linears);

/// In plain words what of a mixture has an adapter, experts and routers, with the number of its parameters: tensors of
/// all experts, and modules among which there may be routers and Linears of single experts. Empty where it has none.
std::string expert_note(Decoder& model, const AdapterOptions& options, const std::vector<std::string>& tensors,
                        const std::vector<std::string>& modules);

/// How to adapt experts that the options seem to mean and, as in PEFT, leave alone; empty where there are none such.
/// options: as translate_for_experts gives them.
std::string untouched_experts_note(const DecoderConfig& config, const AdapterOptions& options);

/// Which tensors of experts an adapter's file is for: the shape of A tells them apart where one stands alone, the names
/// in target_parameters where sizes are the same. linears: of the model.
std::vector<std::string> expert_tensors_of(const DecoderConfig& config, const PeftAdapter& adapter,
                                           const std::vector<std::string>& linears);

/// The part of such a LoRA that is beside one Linear.
class ExpertLora final : public Adapter, public FactoredAdapter {
 public:
  /// owner: whether this is the one that shows A and B to visitors.
  ExpertLora(ExpertPart part, int64_t outputs, double scaling, std::shared_ptr<Parameter> a,
             std::shared_ptr<Parameter> b, bool owner, MemoryPool& host);

  std::optional<ops::LowRankEpilogue> low_rank_forward(const Tensor& x, const StepContext& step,
                                                       AdapterSaved* saved) const override;
  UpdateFactors factors(MemoryPool& pool) const override;
  UpdateFactors gradients(MemoryPool& pool) override;
  void put_gradients(const UpdateFactors& gradients) override;
  void forward(const Tensor& x, const LinearWeight& base, Tensor& y, const StepContext& step,
               AdapterSaved* saved) const override;
  AdapterGradient backward(const Tensor& dy, const LinearWeight& base, const StepContext& step) const override;
  void accumulate_gradients(const AdapterGradient& gradient, const Tensor& dy, const Tensor& x, const StepContext& step,
                            const AdapterSaved& saved) override;
  void backward_input(const AdapterGradient& gradient, const Tensor& dy, const LinearWeight& base,
                      const StepContext& step, Tensor& dx, bool accumulate) const override;
  bool trainable() const override { return a_->trainable; }
  void visit(const ParameterVisitor& visitor) override;
  void merge_rows(int64_t begin, Tensor& rows) const override;

 private:
  int64_t r() const { return a_->value.dim(0) / part_.experts; }
  /// The expert's own of A or its gradient, [R, in]; swapped: [R, out].
  Tensor own_a(const Tensor& all) const;
  /// The Linear's rows of B or its gradient, [out, R E]; swapped: all, [in, R E].
  Tensor own_rows(const Tensor& all) const;
  /// Its own columns of them, a copy [out, R]; swapped: [in, R].
  Tensor own_b(const Tensor& all, MemoryPool& pool) const;

  ExpertPart part_;
  int64_t outputs_;
  double scaling_;
  std::shared_ptr<Parameter> a_, b_;
  bool owner_;
  Tensor columns_;  // [R] i32, the host's
};

/// Makes the adapters of the Linears of experts, each A and B once.
class ExpertLoras {
 public:
  /// New ones: `file` null; else from its tensors. tensors: paths with an adapter. All must outlive this.
  ExpertLoras(const DecoderConfig& config, const AdapterOptions& options, const std::vector<std::string>& tensors,
              const PeftAdapter* file, bool trainable, RankContext& rank);

  /// Null where the Linear is of no expert, or its tensor has no adapter.
  std::unique_ptr<Adapter> make(const Linear& linear);

 private:
  struct Factors {
    std::shared_ptr<Parameter> a, b;
    double scaling = 0;
  };
  Factors make_factors(const ExpertPart& part, int64_t in) const;

  const DecoderConfig& config_;
  const AdapterOptions& options_;
  const std::vector<std::string>& tensors_;
  const PeftAdapter* file_;
  bool trainable_;
  RankContext& rank_;
  std::map<std::string, Factors> made_;
};

}  // namespace nibble
