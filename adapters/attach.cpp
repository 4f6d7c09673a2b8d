#include "nibble/adapters/attach.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "nibble/adapters/dora.h"
#include "nibble/adapters/lora.h"
#include "nibble/adapters/target_modules.h"
#include "nibble/adapters/trained_whole.h"
#include "nibble/core/base/error.h"
#include "nibble/core/ops/elementwise.h"

namespace nibble {

namespace {

constexpr size_t kMostListed = 5;

std::vector<std::string> linear_paths(Decoder& decoder) {
  std::vector<std::string> paths;
  decoder.visit_linears([&](Linear& linear) { paths.push_back(linear.name()); });
  return paths;
}

void freeze(Decoder& decoder) {
  decoder.visit([](Parameter& parameter) {
    parameter.trainable = false;
    parameter.gradient = {};
  });
}

std::shared_ptr<Parameter> make_parameter(const std::string& name, Tensor value, bool trainable, MemoryPool& pool) {
  auto made = std::make_shared<Parameter>();
  made->name = name;
  made->value = std::move(value);
  made->trainable = trainable;
  if (trainable) made->gradient = Tensor::zeros(pool, made->value.shape(), DType::f32, name);
  return made;
}

void refuse_second_adapter(Linear& linear) {
  if (linear.adapter()) throw UsageError(linear.name() + " has an adapter already", "attach one adapter at a time");
}

/// The matrices of a new LoRA, as PEFT starts them.
class NewLora {
 public:
  NewLora(const AdapterOptions& options, RankContext& rank) : options_(options), rank_(rank) {}

  std::unique_ptr<Adapter> make(const Linear& linear) const {
    const std::string& module = linear.name();
    const int64_t r = rank_of(options_, module);
    const LoraSettings settings{lora_scaling(options_, module, r), static_cast<float>(options_.lora_dropout)};
    const bool random_b = options_.init_lora_weights == LoraInit::random;
    const double b_bound = random_b ? 1 / std::sqrt(static_cast<double>(r)) : 0;
    const std::string a_name = lora_a_name(module);
    Tensor a = Tensor::empty(rank_.pool, {r, linear.in_features()}, DType::f32, a_name);
    if (options_.init_lora_weights == LoraInit::gaussian) {
      ops::fill_normal(a, static_cast<float>(1 / static_cast<double>(r)), rank_.seed, module_key(a_name));
    } else {
      fill(a, a_name, 1 / std::sqrt(static_cast<double>(linear.in_features())));
    }
    Tensor b = Tensor::empty(rank_.pool, {linear.out_features(), r}, DType::f32, lora_b_name(module));
    fill(b, lora_b_name(module), b_bound);
    std::shared_ptr<Parameter> bias;
    if (options_.lora_bias) {
      const std::string name = lora_b_bias_name(module);
      Tensor value = Tensor::empty(rank_.pool, {linear.out_features()}, DType::f32, name);
      fill(value, name, b_bound);
      bias = make_parameter(name, value, true, rank_.pool);
    }
    auto lora = std::make_unique<LoraAdapter>(module, settings, make_parameter(a_name, a, true, rank_.pool),
                                              make_parameter(lora_b_name(module), b, true, rank_.pool), bias);
    if (!options_.use_dora) return lora;
    const Tensor magnitude = Tensor::planned({linear.out_features()}, DType::f32);
    return std::make_unique<DoraAdapter>(module, std::move(lora),
                                         make_parameter(dora_magnitude_name(module), magnitude, true, rank_.pool),
                                         linear.weight(), rank_.pool);
  }

 private:
  /// Uniform in +-bound; zero for bound 0.
  void fill(Tensor& value, const std::string& name, double bound) const {
    const auto limit = static_cast<float>(bound);
    if (bound > 0) ops::fill_uniform(value, -limit, limit, rank_.seed, module_key(name));
    if (bound <= 0) value.zero();
  }

  const AdapterOptions& options_;
  RankContext& rank_;
};

/// The tensors of a PEFT file as they find their places in a model.
class StoredAdapter {
 public:
  StoredAdapter(const PeftAdapter& file, bool trainable, RankContext& rank)
      : file_(file), trainable_(trainable), rank_(rank) {}

  std::unique_ptr<Adapter> make(const Linear& linear) {
    const std::string& module = linear.name();
    const Tensor a = take(module + ".lora_A.weight"), b = take(module + ".lora_B.weight");
    check_shape(module + ".lora_A.weight", a, {a.dim(0), linear.in_features()});
    check_shape(module + ".lora_B.weight", b, {linear.out_features(), a.dim(0)});
    std::shared_ptr<Parameter> bias;
    if (const Tensor stored = take(module + ".lora_B.bias")) {
      check_shape(module + ".lora_B.bias", stored, {linear.out_features()});
      bias = parameter(lora_b_bias_name(module), stored);
    }
    const LoraSettings settings{lora_scaling(file_.options, module, a.dim(0)),
                                static_cast<float>(file_.options.lora_dropout)};
    auto lora = std::make_unique<LoraAdapter>(module, settings, parameter(lora_a_name(module), a),
                                              parameter(lora_b_name(module), b), bias);
    const std::string magnitude_name = module + ".lora_magnitude_vector";
    const Tensor magnitude = take(magnitude_name);
    if (magnitude.defined() != file_.options.use_dora) {
      throw InputError(file_.file(),
                       module + (magnitude ? " has" : " has no") + std::string(" lora_magnitude_vector, ") +
                           "but use_dora is " + (magnitude ? "false" : "true"),
                       "save the adapter again");
    }
    if (!magnitude) return lora;
    check_shape(magnitude_name, magnitude, {linear.out_features()});
    return std::make_unique<DoraAdapter>(module, std::move(lora), parameter(dora_magnitude_name(module), magnitude),
                                         linear.weight(), rank_.pool);
  }

  /// Copies a tensor into a parameter of the same PEFT name.
  void fill(Parameter& whole) {
    const std::string name = whole.name.substr(std::string(kPeftPrefix).size());
    const Tensor stored = take(name);
    if (!stored) return;
    check_shape(name, stored, whole.value.shape());
    ops::cast(stored, whole.value);
  }

  Tensor take(const std::string& name) {
    Tensor found = file_.find(name);
    if (found) used_.insert(name);
    return found;
  }
  bool used(const std::string& name) const { return used_.contains(name); }
  bool used_any() const { return !used_.empty(); }

 private:
  void check_shape(const std::string& name, const Tensor& stored, const Shape& shape) const {
    if (stored.shape() == shape) return;
    throw InputError(file_.file(),
                     name + " has shape " + to_string(stored.shape()) + ", the model needs " + to_string(shape),
                     "use the model that the adapter was trained on");
  }
  std::shared_ptr<Parameter> parameter(const std::string& name, const Tensor& stored) const {
    Tensor value = Tensor::empty(rank_.pool, stored.shape(), DType::f32, name);
    ops::cast(stored, value);
    return make_parameter(name, value, trainable_, rank_.pool);
  }

  const PeftAdapter& file_;
  bool trainable_;
  RankContext& rank_;
  std::set<std::string> used_;
};

std::string listed(const std::vector<std::string>& names) {
  std::string made;
  for (size_t i = 0; i < std::min(names.size(), kMostListed); ++i) made += (i ? ", " : "") + names[i];
  if (names.size() > kMostListed) made += " and " + std::to_string(names.size() - kMostListed) + " more";
  return made;
}

/// What must not be left out in silence: parts of the adapter that change results and have no place here.
void refuse_lost_parts(const PeftAdapter& adapter, const StoredAdapter& stored, Decoder& decoder) {
  std::set<std::string> base;
  decoder.visit([&](Parameter& parameter) { base.insert(parameter.name); });
  for (const auto& [name, tensor] : adapter.tensors) {
    if (stored.used(name)) continue;
    for (const char* part : {".lora_embedding_A", ".lora_embedding_B", ".token_adapter.", ".lora_magnitude_vector"}) {
      if (name.find(part) == std::string::npos) continue;
      throw InputError(adapter.file(), name + " belongs to a kind of adapter that is not supported",
                       "use LoRA on Linear modules");
    }
    if (base.contains(name)) {
      throw InputError(adapter.file(),
                       name + " would replace a weight of the model, but modules_to_save does not name it",
                       "add the module to modules_to_save in adapter_config.json");
    }
  }
}

void note_leftovers(const PeftAdapter& adapter, const StoredAdapter& stored, Decoder& decoder,
                    AttachedAdapter& attached) {
  std::vector<std::string> unused, empty;
  for (const auto& [name, tensor] : adapter.tensors) {
    if (!stored.used(name)) unused.push_back(name);
  }
  if (!unused.empty()) {
    attached.notes.push_back("the model has no place for " + std::to_string(unused.size()) +
                             " tensors of the adapter: " + listed(unused));
  }
  const DecoderConfig& config = decoder.config();
  try {
    const TargetModules wanted =
        match_target_modules(linear_paths(decoder), config.names.head, config.model_type, adapter.options);
    const std::set<std::string> have(attached.modules.begin(), attached.modules.end());
    for (const std::string& module : wanted.modules) {
      if (!have.contains(module)) empty.push_back(module);
    }
  } catch (const UsageError&) {  // the tensors say what goes where; the config only describes it
  }
  if (!empty.empty()) {
    attached.notes.push_back("the adapter names " + std::to_string(empty.size()) +
                             " modules that it has no tensors for: " + listed(empty));
  }
}

}  // namespace

AttachedAdapter attach_adapter(Decoder& decoder, const AdapterOptions& options, RankContext& rank) {
  check_options(options, "adapter");
  const DecoderConfig& config = decoder.config();
  const std::vector<std::string> linears = linear_paths(decoder);
  TargetModules found = match_target_modules(linears, config.names.head, config.model_type, options);

  AttachedAdapter attached{options, std::move(found.modules), {}};
  if (!found.unmatched_entries.empty()) {
    attached.notes.push_back("these fit no module: " + listed(found.unmatched_entries));
  }
  if (options.target_modules.empty() || options.target_modules.all_linear()) {
    attached.options.target_modules.names = target_names(attached.modules, linears, options, config.names.head);
    attached.options.target_modules.pattern.clear();
  }
  freeze(decoder);
  const NewLora lora(options, rank);
  const std::set<std::string> chosen(attached.modules.begin(), attached.modules.end());
  decoder.visit_linears([&](Linear& linear) {
    refuse_second_adapter(linear);
    if (chosen.contains(linear.name())) linear.set_adapter(lora.make(linear));
  });
  train_whole(decoder, options, chosen, true, rank);
  return attached;
}

AttachedAdapter load_adapter(Decoder& decoder, const PeftAdapter& adapter, bool trainable, RankContext& rank) {
  AttachedAdapter attached{adapter.options, {}, {}};
  StoredAdapter stored(adapter, trainable, rank);
  freeze(decoder);
  decoder.visit_linears([&](Linear& linear) {
    refuse_second_adapter(linear);
    if (!adapter.find(linear.name() + ".lora_A.weight")) return;
    linear.set_adapter(stored.make(linear));
    attached.modules.push_back(linear.name());
  });
  train_whole(decoder, adapter.options, {attached.modules.begin(), attached.modules.end()}, trainable, rank);
  decoder.visit([&](Parameter& parameter) {
    if (parameter.name.starts_with(kPeftPrefix)) stored.fill(parameter);
  });
  refuse_lost_parts(adapter, stored, decoder);
  if (!stored.used_any()) {
    throw InputError(adapter.file(),
                     "no tensor fits the model; the first is " + adapter.tensors.begin()->first + ", the model has " +
                         listed(linear_paths(decoder)),
                     "use the model that the adapter was trained on");
  }
  note_leftovers(adapter, stored, decoder, attached);
  return attached;
}

std::vector<std::pair<std::string, Tensor>> adapter_tensors(Decoder& decoder) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  decoder.visit([&](Parameter& parameter) {
    if (parameter.name.starts_with(kPeftPrefix)) tensors.emplace_back(parameter.name, parameter.value);
  });
  return tensors;
}

void save_adapter(Decoder& decoder, const AttachedAdapter& attached, const std::filesystem::path& directory,
                  bool force) {
  write_peft_directory(directory, attached.options, adapter_tensors(decoder), force);
}

}  // namespace nibble
