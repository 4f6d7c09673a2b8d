#include "nibble/adapters/merging/combine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "nibble/adapters/merging/merged_source.h"
#include "nibble/adapters/peft/peft_directory.h"
#include "nibble/adapters/peft/stored_tables.h"
#include "nibble/adapters/target_modules.h"
#include "nibble/adapters/tuners/decomposition.h"
#include "nibble/adapters/tuners/lora.h"
#include "nibble/core/base/error.h"
#include "nibble/core/models/nonfinite.h"
#include "nibble/core/ops/columns.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/gemm.h"

namespace nibble {

namespace {

/// One pair of names in a file.
struct FactorNames {
  std::string path;
  bool is_embedding;
  std::string a() const { return path + std::string(is_embedding ? kLoraEmbeddingA : kLoraA); }
  std::string b() const { return path + std::string(is_embedding ? kLoraEmbeddingB : kLoraB); }
  auto operator<=>(const FactorNames&) const = default;
};

/// What one source gives to one module.
struct Part {
  Tensor a, b;  // f32
  double weight, scaling;
};

/// What PEFT saves below a LoRA on a table ends in.
constexpr std::string_view kFrozen = ".base_layer.weight";

bool needs_density(CombineMethod method) { return method != CombineMethod::linear && method != CombineMethod::cat; }
bool drops_at_random(CombineMethod method) {
  return method == CombineMethod::dare_linear || method == CombineMethod::dare_ties;
}
bool elects_sign(CombineMethod method) { return method == CombineMethod::ties || method == CombineMethod::dare_ties; }

void refuse_more_than_lora(const PeftAdapter& adapter) {
  const auto refuse = [&](const std::string& what) {
    throw UsageError("has " + what + ", which cannot be combined", "combine plain LoRA adapters, or merge each",
                     adapter.file());
  };
  if (adapter.options.use_dora) refuse("DoRA magnitudes");
  if (takes_from_base(adapter.options.init_lora_weights)) refuse("a start that was taken from the base");
  if (!adapter.options.target_parameters.empty()) refuse("a LoRA on tensors (target_parameters)");
  for (const auto& [name, tensor] : adapter.tensors) {
    const bool lora = std::ranges::any_of(std::array{kLoraA, kLoraB, kLoraEmbeddingA, kLoraEmbeddingB},
                                          [&](std::string_view end) { return name.ends_with(end); });
    if (!lora && !name.ends_with(kFrozen)) refuse(name);
  }
  if (!adapter.options.modules_to_save.empty()) refuse("modules that are fully trained (modules_to_save)");
  if (!adapter.options.trainable_token_indices.empty()) refuse("trained tokens (trainable_token_indices)");
}

// Options that the method does not look at.
void refuse_unused(const CombineOptions& options) {
  if (options.rank > 0 && !options.svd) throw UsageError("is for svd alone", "leave it out", "--rank");
  if (options.density >= 0 && !needs_density(options.method)) {
    throw UsageError("is for ties, dare and magnitude_prune", "leave it out", "--density");
  }
}

void check(const std::vector<CombineSource>& sources, const CombineOptions& options) {
  if (sources.empty()) throw UsageError("there is no adapter to combine", "give --adapter and --weight", "--adapter");
  for (const CombineSource& source : sources) {
    refuse_more_than_lora(*source.adapter);
    if (!std::isfinite(source.weight)) throw UsageError("a weight is not a finite number", "", "--weight");
  }
  if (options.svd && options.method == CombineMethod::cat) throw UsageError("cat_svd does not exist", "use svd");
  if (!needs_density(options.method)) return;
  if (!(options.density >= 0 && options.density <= 1) || (drops_at_random(options.method) && options.density == 0)) {
    throw UsageError("the method needs the share of elements to keep", "give --density between 0 and 1", "--density");
  }
}

int64_t largest_rank(const AdapterOptions& options) {
  int64_t r = options.r;
  for (const auto& [key, value] : options.rank_pattern) r = std::max(r, value);
  return r;
}

int64_t result_rank(const std::vector<CombineSource>& sources, const CombineOptions& options) {
  std::vector<int64_t> ranks;
  for (const CombineSource& source : sources) ranks.push_back(largest_rank(source.adapter->options));
  if (options.method == CombineMethod::cat) return std::accumulate(ranks.begin(), ranks.end(), int64_t{0});
  if (options.svd) return options.rank > 0 ? options.rank : *std::ranges::max_element(ranks);
  if (std::ranges::adjacent_find(ranks, std::not_equal_to<>()) == ranks.end()) return ranks.front();
  throw UsageError("the adapters have different ranks", "use cat, or a method that ends with svd", "--method");
}

/// Keeps the `density` largest elements; of equal ones the first.
void keep_largest(Tensor& x, double density) {
  const std::span<float> values = x.span<float>();
  const auto kept = static_cast<size_t>(density * static_cast<double>(values.size()));
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto larger = [&](size_t i, size_t j) {
    const float x_i = std::abs(values[i]), x_j = std::abs(values[j]);
    return x_i != x_j ? x_i > x_j : i < j;
  };
  if (kept < order.size())
    std::nth_element(order.begin(), order.begin() + static_cast<int64_t>(kept), order.end(), larger);
  for (size_t i = kept; i < order.size(); ++i) values[order[i]] = 0;
}

/// Drops elements by chance and scales up the others.
void drop_random(Tensor& x, double density, uint64_t seed, uint64_t purpose, MemoryPool& pool) {
  Tensor draws = Tensor::empty(pool, x.shape(), DType::f32, "draws");
  ops::fill_uniform(draws, 0.0f, 1.0f, seed, purpose);
  const std::span<float> values = x.span<float>();
  const std::span<const float> drawn = draws.span<const float>();
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = double{drawn[i]} < density ? values[i] / static_cast<float>(density) : 0.0f;
  }
}

/// Sums tensors of one shape as the method says.
class Summation {
 public:
  Summation(const CombineOptions& options, MemoryPool& pool) : options_(options), pool_(pool) {}

  /// `purpose` keys the random draws.
  Tensor sum(std::vector<Tensor> tensors, const std::vector<float>& weights, const std::string& purpose) const {
    if (needs_density(options_.method) && options_.density < 1) {
      for (size_t i = 0; i < tensors.size(); ++i) {
        if (drops_at_random(options_.method)) {
          drop_random(tensors[i], options_.density, options_.seed, module_key(purpose + "#" + std::to_string(i)),
                      pool_);
        } else {
          keep_largest(tensors[i], options_.density);
        }
      }
    }
    return elects_sign(options_.method) ? majority(tensors, weights) : weighted(tensors, weights);
  }

 private:
  Tensor weighted(const std::vector<Tensor>& tensors, const std::vector<float>& weights) const {
    Tensor total = Tensor::zeros(pool_, tensors.front().shape(), DType::f32, "sum of adapters");
    for (size_t i = 0; i < tensors.size(); ++i) ops::add(tensors[i], total, weights[i]);
    return total;
  }

  /// The mean of the weighted elements that have the majority's sign.
  Tensor majority(const std::vector<Tensor>& tensors, const std::vector<float>& weights) const {
    Tensor result = Tensor::zeros(pool_, tensors.front().shape(), DType::f32, "sum of adapters");
    const std::span<float> out = result.span<float>();
    const auto sign = [](float x) { return static_cast<float>((x > 0) - (x < 0)); };
    for (size_t i = 0; i < out.size(); ++i) {
      float votes = 0, total = 0, count = 0;
      for (const Tensor& tensor : tensors) {
        const float x = tensor.data<const float>()[i];
        votes += options_.by_count ? sign(x) : x;
      }
      const float elected = votes >= 0 ? 1.0f : -1.0f;
      for (size_t j = 0; j < tensors.size(); ++j) {
        const float x = tensors[j].data<const float>()[i];
        if (sign(x) != elected) continue;
        total += x * weights[j];
        count += 1;
      }
      out[i] = total / std::max(count, 1.0f);
    }
    return result;
  }

  const CombineOptions& options_;
  MemoryPool& pool_;
};

/// A [r', in] and B [out, r'] filled up with zeros to rank r.
LowRankFactors filled_up(const LowRankFactors& pair, int64_t r, MemoryPool& pool) {
  LowRankFactors result{Tensor::zeros(pool, {r, pair.a.dim(1)}, DType::f32, "adapter"),
                        Tensor::zeros(pool, {pair.b.dim(0), r}, DType::f32, "adapter")};
  Tensor upper = result.a.rows(0, pair.a.dim(0));
  ops::cast(pair.a, upper);
  ops::copy_columns_in(pair.b, 0, result.b);
  return result;
}

class Combination {
 public:
  Combination(const std::vector<CombineSource>& sources, const CombineOptions& options, int64_t rank, MemoryPool& pool)
      : sources_(sources), options_(options), rank_(rank), pool_(pool), summation_(options, pool) {}

  LowRankFactors combine(const FactorNames& module) const {
    const std::vector<Part> parts = parts_of(module);
    if (options_.method == CombineMethod::cat) return filled_up(side_by_side(parts), rank_, pool_);
    return filled_up(options_.svd ? by_changes(parts, module) : by_factors(parts, module), rank_, pool_);
  }

 private:
  std::vector<Part> parts_of(const FactorNames& module) const {
    std::vector<Part> parts;
    for (const CombineSource& source : sources_) {
      const Tensor a = source.adapter->find(module.a()), b = source.adapter->find(module.b());
      if (!a) continue;
      check_rank(source.adapter->options, module.path, a.dim(0), source.adapter->file());
      parts.push_back({as_f32(a, pool_), as_f32(b, pool_), source.weight,
                       lora_scaling(source.adapter->options, module.path, a.dim(0))});
      const Part &first = parts.front(), &last = parts.back();
      if (first.a.dim(1) != last.a.dim(1) || first.b.dim(0) != last.b.dim(0)) {
        throw InputError(source.adapter->file(), module.path + " has another shape than in the other adapters",
                         "combine adapters of one model");
      }
    }
    return parts;
  }

  LowRankFactors side_by_side(const std::vector<Part>& parts) const {
    int64_t r = 0, done = 0;
    for (const Part& part : parts) r += part.a.dim(0);
    LowRankFactors result{Tensor::empty(pool_, {r, parts.front().a.dim(1)}, DType::f32, "adapter"),
                          Tensor::empty(pool_, {parts.front().b.dim(0), r}, DType::f32, "adapter")};
    for (const Part& part : parts) {
      Tensor a = part.a.clone(pool_), rows = result.a.rows(done, done + part.a.dim(0));
      ops::scale(a, static_cast<float>(part.weight * part.scaling));
      ops::cast(a, rows);
      ops::copy_columns_in(part.b, done, result.b);
      done += part.a.dim(0);
    }
    return result;
  }

  LowRankFactors by_factors(const std::vector<Part>& parts, const FactorNames& module) const {
    std::vector<Tensor> a, b;
    std::vector<float> a_weights, b_weights;
    for (const Part& part : parts) {
      if (part.a.dim(0) != parts.front().a.dim(0)) {
        throw UsageError(module.path + " has different ranks in the adapters",
                         "use cat, or a method that ends with svd", "--method");
      }
      const double weight = part.weight * part.scaling, root = std::sqrt(std::abs(weight));
      a.push_back(part.a);
      b.push_back(part.b);
      a_weights.push_back(static_cast<float>(weight >= 0 ? root : -root));
      b_weights.push_back(static_cast<float>(root));
    }
    return {summation_.sum(a, a_weights, module.a()), summation_.sum(b, b_weights, module.b())};
  }

  LowRankFactors by_changes(const std::vector<Part>& parts, const FactorNames& module) const {
    std::vector<Tensor> changes;
    std::vector<float> weights;
    for (const Part& part : parts) {
      Tensor change = Tensor::empty(pool_, {part.b.dim(0), part.a.dim(1)}, DType::f32, "change of a weight");
      ops::matmul_nn(part.b, part.a, change, false, static_cast<float>(part.scaling));
      changes.push_back(change);
      weights.push_back(static_cast<float>(part.weight));
    }
    const Tensor total = summation_.sum(changes, weights, module.path);
    const int64_t r = std::min({rank_, total.dim(0), total.dim(1)});
    TruncatedSvd svd = truncated_svd(total, r, pool_);
    for (int64_t i = 0; i < svd.u.numel(); ++i) {
      svd.u.data<float>()[i] *= static_cast<float>(svd.s[static_cast<size_t>(i % r)]);
    }
    return {svd.vt, svd.u};
  }

  const std::vector<CombineSource>& sources_;
  const CombineOptions& options_;
  int64_t rank_;
  MemoryPool& pool_;
  Summation summation_;
};

std::set<FactorNames> modules_of(const std::vector<CombineSource>& sources) {
  std::set<FactorNames> modules;
  for (const CombineSource& source : sources) {
    for (const auto& [name, tensor] : source.adapter->tensors) {
      for (const std::string_view end : {kLoraA, kLoraEmbeddingA}) {
        if (name.ends_with(end)) modules.insert({name.substr(0, name.size() - end.size()), end == kLoraEmbeddingA});
      }
    }
  }
  return modules;
}

/// Those that the sources bring; what stands beside two different ones cannot become one adapter.
std::map<std::string, Tensor> frozen_tables(const std::vector<CombineSource>& sources, MemoryPool& pool) {
  std::map<std::string, Tensor> tables;
  for (const CombineSource& source : sources) {
    for (const auto& [name, tensor] : source.adapter->tensors) {
      if (!name.ends_with(kFrozen)) continue;
      const auto [known, added] = tables.emplace(name, tensor);
      if (added || same_values(known->second, tensor, pool)) continue;
      throw InputError(source.adapter->file(), name + " has other values than in the other adapters",
                       "combine adapters of one model, resized once");
    }
  }
  return tables;
}

/// The names of all sources; the paths themselves where other options narrow what the names mean.
ModuleSelector targets_of(const std::vector<CombineSource>& sources, const std::set<FactorNames>& modules) {
  std::set<std::string> names;
  bool plain = true;
  for (const CombineSource& source : sources) {
    const AdapterOptions& options = source.adapter->options;
    plain = plain && !options.target_modules.names.empty() && options.exclude_modules.empty() &&
            !options.layers_to_transform;
    names.insert(options.target_modules.names.begin(), options.target_modules.names.end());
  }
  const auto named = [&](const FactorNames& module) {
    return std::ranges::any_of(
        names, [&](const std::string& name) { return module.path == name || module.path.ends_with("." + name); });
  };
  ModuleSelector result;
  if (plain && std::ranges::all_of(modules, named)) {
    result.names.assign(names.begin(), names.end());
  } else {
    for (const FactorNames& module : modules) result.names.push_back(module.path);
  }
  return result;
}

}  // namespace

void set_combine_method(const std::string& name, CombineOptions& options) {
  constexpr std::array<std::pair<const char*, CombineMethod>, 6> kMethods{{
      {"linear", CombineMethod::linear},
      {"cat", CombineMethod::cat},
      {"ties", CombineMethod::ties},
      {"dare_linear", CombineMethod::dare_linear},
      {"dare_ties", CombineMethod::dare_ties},
      {"magnitude_prune", CombineMethod::magnitude_prune},
  }};
  options.svd = name == "svd" || name.ends_with("_svd");
  const std::string plain = name == "svd" ? "linear" : name.substr(0, name.size() - (options.svd ? 4 : 0));
  const auto found = std::ranges::find(kMethods, plain, [](const auto& entry) { return std::string(entry.first); });
  const bool known = found != kMethods.end() && name != "linear_svd" && name != "cat_svd";
  if (!known) throw UsageError("method " + name + " is not known", "see nibble combine --help", "--method");
  options.method = found->second;
}

CombinedAdapter combine_adapters(const std::vector<CombineSource>& sources, const CombineOptions& asked,
                                 MemoryPool& pool) {
  refuse_unused(asked);
  CombineOptions options = asked;
  if (sources.size() == 1) {  // as PEFT
    options.method = CombineMethod::linear;
    options.svd = false;
  }
  check(sources, options);
  const int64_t rank = result_rank(sources, options);
  const std::set<FactorNames> modules = modules_of(sources);
  const AdapterOptions& first = sources.front().adapter->options;
  CombinedAdapter result;
  result.options.r = rank;
  result.options.lora_alpha = static_cast<double>(rank);
  result.options.target_modules = targets_of(sources, modules);
  result.options.fan_in_fan_out = first.fan_in_fan_out;
  result.options.base_model = first.base_model;
  result.options.task = first.task;
  const Combination combination(sources, options, rank, pool);
  for (const FactorNames& module : modules) {
    const LowRankFactors pair = combination.combine(module);
    for (const Tensor& factor : {pair.a, pair.b}) {
      const std::string bad = nonfinite_text("the sum", factor);
      if (!bad.empty()) throw NumericError(module.path, bad, "give smaller weights");
    }
    result.tensors.emplace_back(kPeftPrefix + module.a(), pair.a);
    result.tensors.emplace_back(kPeftPrefix + module.b(), pair.b);
  }
  for (const auto& [name, table] : frozen_tables(sources, pool)) result.tensors.emplace_back(kPeftPrefix + name, table);
  return result;
}

}  // namespace nibble
