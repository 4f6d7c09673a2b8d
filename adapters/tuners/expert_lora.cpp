#include "nibble/adapters/tuners/expert_lora.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "nibble/adapters/new_adapter.h"
#include "nibble/adapters/target_modules.h"
#include "nibble/adapters/tuners/lora.h"
#include "nibble/core/base/error.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/formatting/joined.h"
#include "nibble/core/formatting/readable.h"
#include "nibble/core/models/load.h"
#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/pick.h"
#include "nibble/core/text/matching/python_regex.h"

namespace nibble {

namespace {

// The other tensor of the same module that may have an adapter; empty: none.
std::string sibling(const DecoderConfig& config, const std::string& tensor) {
  const ExpertNames& names = config.names.block.experts;
  if (module_of(names.peft_gate_up) != module_of(names.peft_down)) return "";
  const std::string &from = tensor.ends_with(names.peft_down) ? names.peft_down : names.peft_gate_up,
                    &to = tensor.ends_with(names.peft_down) ? names.peft_gate_up : names.peft_down;
  return tensor.substr(0, tensor.size() - from.size()) + to;
}

bool is_first(const DecoderConfig& config, const std::string& tensor) {
  return tensor.ends_with(config.names.block.experts.peft_gate_up);
}

}  // namespace

std::string expert_lora_stem(const DecoderConfig& config, const std::string& tensor,
                             const std::vector<std::string>& adapted) {
  const bool nests = is_first(config, tensor) && std::ranges::count(adapted, sibling(config, tensor)) > 0;
  return module_of(tensor) + (nests ? ".base_layer" : "");
}

std::vector<std::string> expert_tensors_of(const DecoderConfig& config, const PeftAdapter& adapter,
                                           const std::vector<std::string>& linears) {
  std::vector<std::string> found;
  const auto named = [&](const std::string& tensor) {
    return std::ranges::any_of(adapter.options.target_parameters,
                               [&](const std::string& name) { return tensor == name || tensor.ends_with("." + name); });
  };
  for (const std::string& linear : linears) {
    const std::optional<ExpertPart> part = expert_part(config, linear);
    if (!part || part->expert != 0 || std::ranges::count(found, part->tensor)) continue;
    const std::string module = module_of(part->tensor), other = sibling(config, part->tensor);
    const bool both = !other.empty() && adapter.find(module + ".base_layer.lora_A.weight");
    const Tensor a = adapter.find(module + ".lora_A.weight");
    if (both || (a && (other.empty() || !named(other) || named(part->tensor)))) {
      int64_t in = is_first(config, part->tensor) ? config.experts->expert_width() : config.experts->hidden;
      if (part->swapped) in = part->outputs;
      const bool fits = both || named(part->tensor) || (a.rank() == 2 && a.dim(1) == in);
      if (fits) found.push_back(part->tensor);
    }
  }
  return found;
}

// ---- which ----

namespace {

// Whether the router is a Linear of its own in Transformers, which PEFT chooses like any other.
bool routes_by_linear(const DecoderConfig& config) {
  const bool mixes = config.experts && config.experts->routing.score == ops::RouterScore::sparse_mixer;
  return mixes || last_part(config.names.block.experts.peft_router) == "wg";
}

// An expert's Linears and the router, by the names that PEFT translates.
bool is_translated(const ExpertNames& names, const std::string& last) {
  return last == names.gate || last == names.up || last == names.down || last == "gate";
}

// PEFT makes a list of an expression: the last names of all it selects, of the Linears that experts were of, too.
ModuleSelector listed_names(const AdapterOptions& options, const DecoderConfig& config) {
  const std::string& pattern = options.target_modules.pattern;
  const PythonRegex regex(pattern);
  const auto fits = [&](const std::string& module) { return regex.matches_whole(options.paths.of(module)); };
  const ExpertNames& names = config.names.block.experts;
  LocalRank rank;
  std::set<std::string> found;
  plan_decoder(config, rank.context()).visit_linears([&](Linear& linear) {
    const std::optional<ExpertPart> part = expert_part(config, linear.name());
    if (!part && fits(linear.name())) found.insert(last_part(linear.name()));
    if (!part || part->expert != 0) return;
    for (const std::string& name : {names.gate, names.up, names.down}) {
      if (fits(module_of(part->tensor) + "." + name)) found.insert(name);
    }
  });
  if (found.empty()) return {{}, pattern};
  return {{found.begin(), found.end()}, ""};
}

template <typename Value>
void set_pattern(std::vector<std::pair<std::string, Value>>& patterns, const std::string& key, Value value) {
  const auto found = std::ranges::find(patterns, key, &std::pair<std::string, Value>::first);
  if (found == patterns.end()) {
    patterns.emplace_back(key, value);
  } else {
    found->second = value;
  }
}

}  // namespace

bool is_parameter_router(const DecoderConfig& config, const std::string& linear) {
  return is_router(config, linear) && !routes_by_linear(config);
}

AdapterOptions translate_for_experts(AdapterOptions options, const DecoderConfig& config) {
  if (!config.experts || !config.names.block.experts.peft_translates) return options;
  const ExpertNames& names = config.names.block.experts;
  bool gate = options.target_modules.all_linear(), up = gate, down = gate, router = gate;
  if (!gate && !options.target_modules.pattern.empty()) {
    options.target_modules = listed_names(options, config);
  }
  std::vector<std::string>& modules = options.target_modules.names;
  for (const std::string& name : modules) {
    gate = gate || last_part(name) == names.gate;
    up = up || last_part(name) == names.up;
    down = down || last_part(name) == names.down;
    router = router || last_part(name) == "gate";
  }
  if (config.experts->gated && gate != up) {
    throw UsageError("gate and up of the experts are one tensor, and only one of them is named",
                     "name both gate_proj and up_proj, or neither", "adapter.target_modules");
  }
  std::erase_if(modules, [&](const std::string& name) { return is_translated(names, last_part(name)); });
  const std::string fused = last_part(names.peft_gate_up);
  const auto add = [&](const std::string& tensor) {
    std::vector<std::string>& all = options.target_parameters;
    if (std::ranges::count(all, tensor) == 0) all.push_back(tensor);
  };
  if (up) add(fused);
  if (router && !routes_by_linear(config)) add("gate.weight");
  if (down) add(last_part(names.peft_down));
  if (up && config.experts->gated) {
    set_pattern(options.rank_pattern, ".*\\." + fused, 2 * options.r);
    set_pattern(options.alpha_pattern, ".*\\." + fused, 2 * options.lora_alpha);
  }
  return options;
}

std::vector<std::string> modules_to_choose(const DecoderConfig& config, const AdapterOptions& options,
                                           const std::vector<std::string>& linears) {
  if (!config.experts) return linears;
  const ExpertNames& names = config.names.block.experts;
  const bool narrow = names.peft_translates && options.target_modules.all_linear();
  std::vector<std::string> result;
  for (const std::string& linear : linears) {
    if (expert_part(config, linear) || is_parameter_router(config, linear)) continue;
    if (!narrow || !is_translated(names, last_part(linear))) result.push_back(linear);
  }
  return result;
}

ExpertTargets match_target_parameters(const DecoderConfig& config, const AdapterOptions& options,
                                      const std::vector<std::string>& linears) {
  ExpertTargets targets;
  if (options.target_parameters.empty()) return targets;
  const auto refuse = [](const std::string& what, const std::string& remedy) {
    throw UsageError(what, remedy, "adapter.target_parameters");
  };
  const bool plain = !takes_from_base(options.init_lora_weights) && options.init_lora_weights != LoraInit::loftq;
  if (options.lora_dropout > 0) {
    throw UsageError("adapters on experts have no dropout, as in PEFT, and the targets include experts",
                     "set adapter.lora_dropout=0, or name target_modules without experts", "adapter.lora_dropout");
  }
  if (options.use_dora || options.lora_bias || !plain) {
    refuse("an adapter on experts is a plain LoRA: no use_dora, lora_bias, pissa, olora, loftq", "leave these out");
  }
  std::set<std::string> used;
  const auto names_it = [&](const std::string& path) {
    bool found = false;
    for (const std::string& name : options.target_parameters) {
      if (!is_named(path, name)) continue;
      used.insert(name);
      found = true;
    }
    return found;
  };
  for (const std::string& linear : linears) {
    const std::optional<ExpertPart> part = expert_part(config, linear);
    if (part && part->expert == 0 && std::ranges::count(targets.tensors, part->tensor) == 0 && names_it(part->tensor)) {
      targets.tensors.push_back(part->tensor);
    }
    if (is_router(config, linear) && names_it(linear + ".weight")) targets.routers.push_back(linear);
  }
  for (const std::string& name : options.target_parameters) {
    if (!used.contains(name)) {
      refuse("\"" + name + "\" names no tensor of experts and no router of the model",
             config.experts ? "the model has " + config.names.block.experts.peft_gate_up + ", " +
                                  config.names.block.experts.peft_down
                            : "the model has no experts");
    }
  }
  return targets;
}

namespace {

/// Modules of one kind that have an adapter.
struct Adapted {
  std::set<int64_t> ranks;
  int64_t count = 0, parameters = 0;
};

std::string ranks_text(const std::set<int64_t>& ranks) {
  return "(rank " + joined(ranks, " or ", [](int64_t r) { return std::to_string(r); }) + ")";
}

std::string parameters_text(int64_t count) { return ", " + grouped_text(count) + " parameters in all"; }

}  // namespace

std::string expert_note(Decoder& model, const AdapterOptions& options, const std::vector<std::string>& tensors,
                        const std::vector<std::string>& modules) {
  const DecoderConfig& config = model.config();
  if (!config.experts) return "";
  const ExpertsConfig& experts = *config.experts;
  std::map<std::string, std::set<int64_t>> ranks;
  int64_t parameters = 0;
  for (const std::string& tensor : tensors) {
    const int64_t r = rank_of(options, tensor), gates = experts.gated ? experts.hidden : 0;
    const int64_t sizes = experts.expert_width() + experts.hidden + (is_first(config, tensor) ? gates : 0);
    parameters += experts.experts * r * sizes;
    ranks[last_part(tensor)].insert(r);
  }
  Adapted routers, singles;
  const std::set<std::string> chosen(modules.begin(), modules.end());
  model.visit_linears([&](Linear& linear) {
    const bool router = is_router(config, linear.name());
    if (!chosen.contains(linear.name()) || (!router && !expert_part(config, linear.name()))) return;
    Adapted& of = router ? routers : singles;
    const int64_t r = rank_of(options, linear.name());
    of.ranks.insert(r);
    ++of.count;
    of.parameters += r * (linear.in_features() + linear.out_features());
  });
  std::vector<std::string> parts;
  if (!tensors.empty()) {
    const auto with_ranks = [](const auto& one) { return one.first + " " + ranks_text(one.second); };
    parts.push_back("every expert gets an adapter of its own: " + joined(ranks, ", ", with_ranks) + " of " +
                    std::to_string(experts.experts) + " experts a layer" + parameters_text(parameters));
  }
  if (singles.count > 0) {
    parts.push_back(count_text(singles.count, "Linear") + " of single experts get an adapter " +
                    ranks_text(singles.ranks) + parameters_text(singles.parameters));
  }
  if (routers.count > 0) {
    parts.push_back("routers get an adapter: " + last_part(config.names.block.experts.peft_router) + " " +
                    ranks_text(routers.ranks) + " of " + count_text(routers.count, "layer") +
                    parameters_text(routers.parameters));
    if (parts.size() == 1) parts.push_back("experts get none");
  }
  return joined(parts, "; ");
}

std::string untouched_experts_note(const DecoderConfig& config, const AdapterOptions& options) {
  if (!config.experts || !options.target_parameters.empty()) return "";
  const ExpertNames& names = config.names.block.experts;
  const bool all = options.target_modules.all_linear();
  const auto is_of_expert = [&](const std::string& name) {
    const std::string last = last_part(name);
    return last == names.gate || last == names.up || last == names.down;
  };
  if (!all && std::ranges::none_of(options.target_modules.names, is_of_expert)) return "";
  return (all ? "all-linear leaves" : "target_modules leave") + (" the experts of " + config.model_type) +
         " alone, as in PEFT; to adapt them, name " + names.peft_gate_up + " and " + names.peft_down +
         " in adapter.target_parameters";
}

// ---- beside one Linear ----

ExpertLora::ExpertLora(ExpertPart part, int64_t outputs, double scaling, std::shared_ptr<Parameter> a,
                       std::shared_ptr<Parameter> b, bool owner, MemoryPool& host)
    : part_(std::move(part)), outputs_(outputs), scaling_(scaling), a_(std::move(a)), b_(std::move(b)), owner_(owner) {
  std::vector<int32_t> columns;
  for (int64_t i = 0; i < r(); ++i) columns.push_back(static_cast<int32_t>(i * part_.experts + part_.expert));
  columns_ = Tensor::from<int32_t>(host, {r()}, columns);
}

Tensor ExpertLora::own_a(const Tensor& all) const { return all.rows(part_.expert * r(), (part_.expert + 1) * r()); }

Tensor ExpertLora::own_rows(const Tensor& all) const {
  if (part_.swapped) return all;
  return all.rows(part_.first_output, part_.first_output + outputs_);
}

Tensor ExpertLora::own_b(const Tensor& all, MemoryPool& pool) const {
  const Tensor rows = own_rows(all);
  Tensor result = Tensor::empty(pool, {rows.dim(0), r()}, DType::f32, "B of an expert");
  ops::take_columns(rows, columns_, result);
  return result;
}

std::optional<ops::LowRankEpilogue> ExpertLora::low_rank_forward(const Tensor& x, const StepContext& step,
                                                                 AdapterSaved* saved) const {
  Tensor h = Tensor::empty(step.pool(), {x.dim(0), r()}, x.dtype(), "x A^T of an adapter");
  if (saved && trainable()) saved->tensors = {h};
  if (part_.swapped) {
    ops::matmul_nn(x, own_b(b_->value, step.pool()), h, false, static_cast<float>(scaling_));
    return ops::LowRankEpilogue{.left = h, .right = own_a(a_->value)};
  }
  ops::matmul_nt(x, own_a(a_->value), h, false, static_cast<float>(scaling_));
  return ops::LowRankEpilogue{.left = h, .right = own_b(b_->value, step.pool()), .right_transposed = true};
}

// x A^T B^T; swapped: x B A.
UpdateFactors ExpertLora::factors(MemoryPool& pool) const {
  UpdateFactors result{.first = own_a(a_->value), .second = own_b(b_->value, pool), .scaling = scaling_};
  if (!part_.swapped) return result;
  std::swap(result.first, result.second);
  result.first_transposed = result.second_transposed = false;
  return result;
}

UpdateFactors ExpertLora::gradients(MemoryPool& pool) {
  UpdateFactors result{.first = own_a(a_->gradient), .second = own_b(b_->gradient, pool)};
  if (part_.swapped) std::swap(result.first, result.second);
  return result;
}

void ExpertLora::put_gradients(const UpdateFactors& gradients) {
  Tensor rows = own_rows(b_->gradient);
  ops::put_columns(part_.swapped ? gradients.first : gradients.second, columns_, rows);
}

void ExpertLora::forward(const Tensor& x, const LinearWeight&, Tensor& y, const StepContext& step,
                         AdapterSaved* saved) const {
  const std::optional<ops::LowRankEpilogue> update = low_rank_forward(x, step, saved);
  (part_.swapped ? ops::matmul_nn : ops::matmul_nt)(update->left, update->right, y, true, 1.0f, nullptr);
}

AdapterGradient ExpertLora::backward(const Tensor& dy, const LinearWeight&, const StepContext& step) const {
  Tensor dh = Tensor::empty(step.pool(), {dy.dim(0), r()}, dy.dtype(), "gradient of x A^T of an adapter");
  if (part_.swapped) {
    ops::matmul_nt(dy, own_a(a_->value), dh, false, static_cast<float>(scaling_));
    const ops::LowRankEpilogue update{.left = dh, .right = own_b(b_->value, step.pool()), .right_transposed = true};
    return {.base = dy, .tensors = {dh}, .update = update};
  }
  ops::matmul_nn(dy, own_b(b_->value, step.pool()), dh, false, static_cast<float>(scaling_));
  return {.base = dy, .tensors = {dh}, .update = ops::LowRankEpilogue{.left = dh, .right = own_a(a_->value)}};
}

void ExpertLora::accumulate_gradients(const AdapterGradient& gradient, const Tensor& dy, const Tensor& x,
                                      const StepContext& step, const AdapterSaved& saved) {
  Tensor b = own_b(b_->gradient, step.pool()), rows = own_rows(b_->gradient), a = own_a(a_->gradient);
  const Tensor &h = saved.tensors.at(0), &dh = gradient.tensors.at(0);
  part_.swapped ? ops::matmul_tn(x, dh, b, true) : ops::matmul_tn(dy, h, b, true);
  ops::put_columns(b, columns_, rows);
  part_.swapped ? ops::matmul_tn(h, dy, a, true) : ops::matmul_tn(dh, x, a, true);
}

void ExpertLora::backward_input(const AdapterGradient& gradient, const Tensor&, const LinearWeight&,
                                const StepContext& step, Tensor& dx, bool accumulate) const {
  if (part_.swapped) return ops::matmul_nt(gradient.tensors.at(0), own_b(b_->value, step.pool()), dx, accumulate);
  ops::matmul_nn(gradient.tensors.at(0), own_a(a_->value), dx, accumulate);
}

void ExpertLora::visit(const ParameterVisitor& visitor) {
  if (!owner_) return;
  visitor(*a_);
  visitor(*b_);
}

void ExpertLora::merge_rows(int64_t begin, Tensor& rows) const {
  MemoryPool pool;
  if (part_.swapped) {
    const Tensor b = own_b(b_->value, pool);
    Tensor a = Tensor::empty(pool, {r(), rows.dim(0)}, DType::f32),
           turned = Tensor::empty(pool, {r(), b.dim(0)}, DType::f32);
    ops::copy_columns_out(own_a(a_->value), begin, a);
    ops::transpose(b, turned);
    return ops::matmul_tn(a, turned, rows, true, static_cast<float>(scaling_));
  }
  const Tensor b = own_b(b_->value, pool).rows(begin, begin + rows.dim(0));
  ops::matmul_nn(b, own_a(a_->value), rows, true, static_cast<float>(scaling_));
}

// ---- all of them ----

ExpertLoras::ExpertLoras(const DecoderConfig& config, const AdapterOptions& options,
                         const std::vector<std::string>& tensors, const PeftAdapter* file, bool trainable,
                         RankContext& rank)
    : config_(config), options_(options), tensors_(tensors), file_(file), trainable_(trainable), rank_(rank) {}

ExpertLoras::Factors ExpertLoras::make_factors(const ExpertPart& part, int64_t in) const {
  const std::string stem = expert_lora_stem(config_, part.tensor, tensors_);
  const std::string a_name = lora_a_name(stem), b_name = lora_b_name(stem);
  int64_t r = rank_of(options_, part.tensor);
  const int64_t a_columns = part.swapped ? part.outputs : in, b_rows = part.swapped ? in : part.outputs;
  MemoryPool& pool = rank_.pool;
  Tensor a, b;
  if (file_) {
    const Tensor stored_a = file_->find(stem + ".lora_A.weight"), stored_b = file_->find(stem + ".lora_B.weight");
    const auto refuse = [&](const std::string& what) {
      throw InputError(file_->file(), what, "use the model that the adapter was trained on");
    };
    if (stored_a.dim(0) % part.experts != 0 || stored_a.dim(1) != a_columns || stored_b.dim(0) != b_rows) {
      refuse(stem + ": lora_A " + to_string(stored_a.shape()) + " and lora_B " + to_string(stored_b.shape()) +
             " do not fit " + part.tensor + " of " + std::to_string(part.experts) + " experts, [" +
             std::to_string(part.outputs) + ", " + std::to_string(in) + "]");
    }
    r = stored_a.dim(0) / part.experts;
    check_rank(options_, part.tensor, r, file_->file());
    a = Tensor::empty(pool, stored_a.shape(), DType::f32, a_name);
    b = Tensor::empty(pool, stored_b.shape(), DType::f32, b_name);
    ops::cast(stored_a, a);
    ops::cast(stored_b, b);
  } else {
    a = Tensor::empty(pool, {part.experts * r, a_columns}, DType::f32, a_name);
    b = Tensor::zeros(pool, {b_rows, r * part.experts}, DType::f32, b_name);
    const bool gaussian = options_.init_lora_weights == LoraInit::gaussian;
    const auto bound = static_cast<float>(1 / std::sqrt(static_cast<double>(a_columns)));
    if (gaussian) {
      ops::fill_normal(a, static_cast<float>(1 / static_cast<double>(r)), rank_.seed, module_key(a_name));
    } else {
      ops::fill_uniform(a, -bound, bound, rank_.seed, module_key(a_name));
    }
    if (options_.init_lora_weights == LoraInit::random) {
      const auto b_bound = static_cast<float>(1 / std::sqrt(static_cast<double>(r)));
      ops::fill_uniform(b, -b_bound, b_bound, rank_.seed, module_key(b_name));
    }
  }
  return {make_parameter(a_name, a, trainable_, pool), make_parameter(b_name, b, trainable_, pool),
          lora_scaling(options_, part.tensor, r)};
}

std::unique_ptr<Adapter> ExpertLoras::make(const Linear& linear) {
  const std::optional<ExpertPart> part = expert_part(config_, linear.name());
  if (!part || std::ranges::count(tensors_, part->tensor) == 0) return nullptr;
  auto found = made_.find(part->tensor);
  const bool owner = found == made_.end();
  if (owner) found = made_.emplace(part->tensor, make_factors(*part, linear.in_features())).first;
  const Factors& factors = found->second;
  return std::make_unique<ExpertLora>(*part, linear.out_features(), factors.scaling, factors.a, factors.b, owner,
                                      rank_.pool.host());
}

}  // namespace nibble
