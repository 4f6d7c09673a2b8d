#include "nibble/core/models/load.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_set>

#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/io/hub/fp8_tensor.h"
#include "nibble/core/models/families/expert_tensors.h"
#include "nibble/core/models/families/families.h"
#include "nibble/core/models/families/family_names.h"
#include "nibble/core/models/shared_modules.h"
#include "nibble/core/nn/feed_forward/expert_exchange.h"
#include "nibble/core/ops/elementwise.h"

namespace nibble {

namespace {

// Buffers that some writers save beside the weights.
bool is_known_buffer(const std::string& name) {
  static constexpr std::string_view kEndings[] = {"rotary_emb.inv_freq", ".attn.bias",      ".attn.masked_bias",
                                                  ".attn.causal_mask",   ".attention.bias", ".attention.masked_bias",
                                                  ".mlp.act_fn.beta",    ".mlp.act_fn.eps"};
  return std::any_of(std::begin(kEndings), std::end(kEndings),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

bool is_outside_language_model(const DecoderConfig& config, const std::string& name) {
  return std::any_of(config.towers.begin(), config.towers.end(),
                     [&](const std::string& tower) { return name.starts_with(tower); });
}

// Keys and values of a layer that reads another's: published files have them all the same.
bool is_of_unused_keys(const DecoderConfig& config, const std::string& name) {
  const AttentionNames& names = config.names.block.attention;
  for (size_t l = 0; l < config.layer.size(); ++l) {
    const std::string prefix = config.names.layers + std::to_string(l) + ".";
    if (config.layer[l].keys_from < 0 || !name.starts_with(prefix)) continue;
    const std::string own = name.substr(prefix.size());
    return own.starts_with(names.k + ".") || own.starts_with(names.v + ".") || own.starts_with(names.k_norm + ".") ||
           own.starts_with(names.v_norm + ".");
  }
  return false;
}

// Hands the tensors of a checkpoint to a model that is being built, and remembers which were asked for.
class Loader {
 public:
  Loader(const CheckpointDir& checkpoint, const DecoderConfig& config, RankContext& rank)
      : checkpoint_(checkpoint), config_(config), pool_(rank.pool), seed_(rank.seed) {}

  std::shared_ptr<Parameter> parameter(const std::string& name, const Shape& shape) {
    Tensor value = is_new(name) ? random_parameter(config_, seed_, name, shape, pool_)->value : take(name, shape);
    if (is_f32(config_.names, name, shape) && (value.dtype() != DType::f32 || !value.writable())) {
      Tensor wide = Tensor::empty(pool_, shape, DType::f32, name);
      ops::cast(value, wide);
      value = wide;
    }
    return std::make_shared<Parameter>(Parameter{.name = name, .value = value, .gradient = {}});
  }

  // A tied head that is in the file all the same must be the embedding, and a block under the names of several layers
  // the same under all.
  void check_copies() {
    const std::string head = config_.names.head + ".weight", embedding = config_.names.embedding + ".weight";
    if (config_.tied_head && checkpoint_.contains(head)) {
      take_copy(head, stored_name(embedding), "though config.json says tie_word_embeddings",
                "set tie_word_embeddings to false to use both");
    }
    if (!config_.has_shared_blocks()) return;
    for (const std::string& name : checkpoint_.names()) {
      const std::string first = name_in_first_layer(config_, name);
      if (first != name && checkpoint_.contains(first)) {
        take_copy(name, first, "though their layers share a block", "save the model again with one of the two");
      }
    }
  }

  // What belongs to layers of other stages is theirs to check.
  void check_nothing_left(const std::function<bool(const std::string&)>& expects, const Decoder& decoder) const {
    std::vector<std::string> left;
    const bool whole = decoder.has_embedding() && decoder.has_head();
    for (const std::string& name : checkpoint_.names()) {
      if (!whole && !in_layers(name, decoder.range())) continue;
      if (is_outside_language_model(config_, name) || is_of_unused_keys(config_, name)) continue;
      if (!config_.passed_over.empty() && name.find(config_.passed_over) != std::string::npos) continue;
      if (in_layers(name, {config_.layers, config_.layers + config_.layers_passed_over})) continue;
      if (decoder.experts() && is_of_other_experts(name, *decoder.experts())) continue;
      if (!config_.replaced_head.empty() && name.starts_with(config_.replaced_head + ".")) continue;
      if (taken_.contains(fp8_weight_of(checkpoint_, name))) continue;
      if (!taken_.contains(name) && !is_known_buffer(name) && !(expects && expects(name))) left.push_back(name);
    }
    if (left.empty()) return;
    std::string list;
    for (size_t i = 0; i < std::min<size_t>(left.size(), 5); ++i) list += (i ? ", " : "") + left[i];
    if (left.size() > 5) list += " and " + std::to_string(left.size() - 5) + " more";
    throw InputError(checkpoint_.file_of(left.front()), "holds tensors that config.json does not account for: " + list,
                     "check that config.json belongs to these weights");
  }

 private:
  // Files saved from the bare model lack the first part of every name ("layers.0..." for "model.layers.0...").
  std::string stored_name(const std::string& name) const {
    const std::string bare = name.substr(name.find('.') + 1);
    return !checkpoint_.contains(name) && checkpoint_.contains(bare) ? bare : name;
  }

  void take_copy(const std::string& name, const std::string& of, const std::string& why, const std::string& remedy) {
    const Tensor a = checkpoint_.at(name), b = checkpoint_.at(of);
    const bool same = a.dtype() == b.dtype() && a.shape() == b.shape() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
    if (!same) fail(name, "differs from " + of + " " + why, remedy);
    taken_.insert(name);
  }

  bool is_new(const std::string& name) const {
    return !config_.replaced_head.empty() && name == config_.names.head + ".weight";
  }

  bool in_layers(const std::string& name, LayerRange range) const {
    for (int64_t l = range.begin; l < range.end; ++l) {
      if (name.starts_with(config_.names.layers + std::to_string(l) + ".")) return true;
    }
    return false;
  }

  // Those that other ranks have, where every expert has tensors of its own.
  bool is_of_other_experts(const std::string& name, const ExpertExchange& experts) const {
    const std::optional<int64_t> expert = expert_of(config_, name);
    if (!expert) return false;
    const Range here = experts.here(config_.experts->experts);
    return *expert < here.begin || *expert >= here.end;
  }

  Tensor take(const std::string& name, const Shape& shape) {
    const std::string stored = stored_name(name);
    if (!checkpoint_.contains(stored) && name == config_.names.head + ".weight") {
      fail(name, "is missing",
           config_.score_labels > 0 ? "give a directory that was saved with its score head"
                                    : "if the head is the embedding, set tie_word_embeddings to true in config.json");
    }
    const Tensor value = read_plain(checkpoint_, stored, pool_.host());
    if (!is_float(value.dtype())) {
      fail(stored, "has dtype " + std::string(dtype_name(value.dtype())) + ", not f32, bf16 or f16",
           "packed weights need quantization_config in config.json");
    }
    if (value.shape() != shape) {
      fail(stored, "has shape " + to_string(value.shape()) + ", config.json makes it " + to_string(shape),
           "check that config.json belongs to these weights");
    }
    taken_.insert(stored);
    return value.aligned() ? value.to(pool_) : value.clone(pool_);
  }

  [[noreturn]] void fail(const std::string& name, const std::string& reason, const std::string& remedy) const {
    throw InputError(checkpoint_.file_of(name) + ": " + name, reason, remedy);
  }

  const CheckpointDir& checkpoint_;
  const DecoderConfig& config_;
  MemoryPool& pool_;
  uint64_t seed_;
  std::unordered_set<std::string> taken_;
};

// Numbers of a mixer's own, which are no norm of the family's kind.
bool is_of_mixer(const std::string& name) {
  return name.ends_with(".dt_bias") || name.ends_with(".D") || name.ends_with("linear_attn.norm.weight");
}

// FNV-1a, so that a tensor's random numbers depend on its name.
uint64_t purpose_of(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace

LinearWeightMaker dense_maker(const DecoderConfig& config, const ParameterMaker& parameter) {
  return [&config, parameter](const std::string& module, const Shape& shape) {
    const bool experts = shape.size() == 3 && config.experts;
    const bool transposed =
        experts ? config.experts->transposed : config.transposed_linears && module != config.names.head;
    Shape stored = shape;
    if (transposed) std::swap(stored.end()[-1], stored.end()[-2]);
    return std::make_unique<DenseWeight>(parameter(weight_name(module, shape), stored), transposed);
  };
}

std::shared_ptr<Parameter> random_parameter(const DecoderConfig& config, uint64_t seed, const std::string& name,
                                            const Shape& shape, MemoryPool& pool) {
  Tensor value;
  const bool bias = name.ends_with("bias");  // those of experts are [E, out]
  if (shape.size() > 1 && !bias && !is_head_norm(config.names, name)) {
    value = Tensor::empty(pool, shape, DType::f32, name);
    ops::fill_normal(value, config.initializer_range, seed, purpose_of(name));
  } else {
    std::vector<float> start(static_cast<size_t>(element_count(shape)), 1.0f);
    for (size_t i = 0; i < start.size(); ++i) {
      if (bias || name.ends_with(".sinks")) {
        start[i] = 0;
      } else if (name.ends_with(".alpha_p")) {  // of xIELU
        start[i] = std::log(std::expm1(0.8f));
      } else if (name.ends_with(".alpha_n")) {
        start[i] = std::log(std::expm1(0.8f - 0.5f));
      } else if (name.ends_with(".A_log")) {  // a state space forgets at rates of 1, 2, 3, ...
        start[i] = std::log(static_cast<float>(i + 1));
      } else if (!is_of_mixer(name)) {
        start[i] -= config.norm.weight_offset;
      }
    }
    value = Tensor::from<float>(pool, shape, start);
  }
  return std::make_shared<Parameter>(Parameter{.name = name, .value = value, .gradient = {}});
}

Decoder load_decoder(const std::filesystem::path& directory, RankContext& rank, const LoadOptions& options) {
  const MemoryPool::Use use(rank.pool, MemoryUse::base);
  CheckpointDir checkpoint(directory);
  const DecoderConfig config = options.config ? *options.config : read_decoder_config(directory);
  checkpoint.split(config.fused_tensors);
  Loader loader(checkpoint, config, rank);
  const ParameterMaker parameter = [&](const std::string& name, const Shape& shape) {
    return loader.parameter(name, shape);
  };
  LinearWeightMaker linear = dense_maker(config, parameter);
  if (options.wrap_linear) linear = options.wrap_linear(checkpoint, linear);
  Decoder decoder(config, linear, parameter, rank, options.layers, options.sharding, options.experts);
  loader.check_copies();
  loader.check_nothing_left(options.expects, decoder);
  // Reading a norm maps up to 2 MiB of the file around it, also weights that were quantized and released before.
  for (const std::string& name : checkpoint.names()) release_pages(checkpoint.at(name));
  decoder.visit_linears([](Linear& of) {
    if (!of.weight().is_first()) return;
    for (const Tensor* tensor : of.weight().storage()) prefer_huge_pages(*tensor);
  });
  return decoder;
}

Decoder random_decoder(const DecoderConfig& config, uint64_t seed, RankContext& rank, LayerRange layers,
                       const LayerSharding* sharding, const ExpertExchange* experts) {
  const MemoryPool::Use use(rank.pool, MemoryUse::base);
  const ParameterMaker parameter = [&](const std::string& name, const Shape& shape) {
    return random_parameter(config, seed, name, shape, rank.pool);
  };
  return Decoder(config, dense_maker(config, parameter), parameter, rank, layers, sharding, experts);
}

Decoder plan_decoder(const DecoderConfig& config, RankContext& rank, LayerRange layers) {
  const ParameterMaker parameter = [](const std::string& name, const Shape& shape) {
    return std::make_shared<Parameter>(
        Parameter{.name = name, .value = Tensor::planned(shape, DType::f32), .gradient = {}});
  };
  return Decoder(config, dense_maker(config, parameter), parameter, rank, layers);
}

void check_trainable(Decoder& decoder) {
  decoder.visit_linears([](Linear& linear) {
    if (linear.weight().parameter() || linear.weight().storage().empty()) return;
    throw UsageError("the weight of " + linear.name() + " is packed and cannot be trained",
                     "add an adapter, or load the model without quantization");
  });
}

namespace {

std::unordered_set<const Parameter*> adapter_parameters(Decoder& decoder) {
  std::unordered_set<const Parameter*> found;
  const ParameterVisitor note = [&](Parameter& parameter) { found.insert(&parameter); };
  decoder.visit_linears([&](Linear& linear) {
    if (linear.adapter()) linear.adapter()->visit(note);
  });
  decoder.visit_embeddings([&](Embedding& embedding) {
    if (embedding.adapter()) embedding.adapter()->visit(note);
  });
  return found;
}

}  // namespace

void make_trainable(Decoder& decoder, RankContext& rank) {
  check_trainable(decoder);
  const auto of_adapters = adapter_parameters(decoder);
  decoder.visit([&](Parameter& parameter) {
    if (!of_adapters.contains(&parameter) && !parameter.trainable && !parameter.buffer)
      parameter.make_trainable(rank.pool);
  });
}

std::vector<NamedTensor> state_dict(Decoder& decoder) {
  const auto of_adapters = adapter_parameters(decoder);
  std::vector<NamedTensor> packed;
  decoder.visit_linears([&](Linear& linear) {
    if (linear.weight().parameter()) return;
    for (NamedTensor& part : linear.weight().parts()) packed.push_back(std::move(part));
  });
  std::vector<NamedTensor> tensors;
  decoder.visit([&](Parameter& parameter) {
    if (!of_adapters.contains(&parameter)) tensors.push_back({parameter.name, parameter.value});
  });
  std::move(packed.begin(), packed.end(), std::back_inserter(tensors));
  return tensors;
}

std::vector<NamedTensor> stored_constants(const DecoderConfig& config, MemoryPool& pool) {
  std::vector<NamedTensor> tensors;
  for (int64_t l = 0; config.xielu && l < config.layers; ++l) {
    const std::string module = config.names.layers + std::to_string(l) + "." + config.names.block.mlp.activation;
    for (const auto& [name, value] : {std::pair{".beta", 0.5f}, std::pair{".eps", -1e-6f}}) {
      tensors.push_back({module + name, Tensor::from<float>(pool, {}, std::vector{value})});
    }
  }
  return tensors;
}

}  // namespace nibble
