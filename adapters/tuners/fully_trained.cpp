#include "nibble/adapters/tuners/fully_trained.h"

#include <algorithm>
#include <memory>

#include "nibble/adapters/peft/adapter_names.h"
#include "nibble/adapters/target_modules.h"
#include "nibble/core/base/error.h"
#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/models/shared_modules.h"
#include "nibble/core/ops/elementwise.h"

namespace nibble {

namespace {

void own(Parameter& parameter, const std::string& name, bool trainable, MemoryPool& pool) {
  parameter.name = kPeftPrefix + name;
  // always a copy: an untied head shares its bytes with the embedding up to here
  Tensor value = Tensor::empty(pool, parameter.value.shape(), DType::f32, parameter.name);
  ops::cast(parameter.value, value);
  release_pages(parameter.value);
  parameter.value = value;
  if (trainable && !parameter.buffer) parameter.make_trainable(pool);
}

/// Gives a tied head a Parameter of its own (the bytes stay shared until one is trained).
void untie(Linear& head) {
  auto copy = std::make_shared<Parameter>(*head.weight().parameter());
  copy->name = head.name() + ".weight";
  head.set_weight(std::make_unique<DenseWeight>(std::move(copy)));
}

void untie_where_needed(Decoder& decoder, const AdapterOptions& options) {
  const std::string embedding = decoder.config().names.embedding;
  decoder.visit_linears([&](Linear& linear) {
    const Parameter* weight = linear.weight().parameter();
    const bool tied = weight && weight->name == embedding + ".weight";
    if (tied && (is_module_to_save(options, embedding) || is_module_to_save(options, linear.name()))) untie(linear);
  });
}

void add_modules(Decoder& model, const AdapterOptions& options, const PeftAdapter* stored, FullyTrained& found) {
  const DecoderConfig& config = model.config();
  std::set<std::string> unused;
  for (const std::string& entry : options.modules_to_save) {
    const auto add = [&](const auto& is_meant) {
      bool any = false;
      model.visit([&](Parameter& parameter) {
        if (!is_meant(parameter.name)) return;
        found[parameter.name] = parameter.name;
        any = true;
      });
      return any;
    };
    const bool fits = add([&](const std::string& name) { return names_module_of(entry, name, config); });
    const bool in_files = add([&](const std::string& name) {
      return (!fits || (stored && stored->find(name))) && names_file_module_of(entry, name);
    });
    if (!fits && !in_files) unused.insert(entry);
  }
  if (found.contains(std::string(kScoreHead) + ".weight")) unused.erase("classifier");  // PEFT names both, one is there
  if (unused.contains(kScoreHead)) {
    throw UsageError("the adapter has a score head, which has no place in a model that continues texts",
                     "use nibble score, or an objective of reward or classification");
  }
  if (!unused.empty()) {
    throw UsageError("modules_to_save names \"" + *unused.begin() + "\", which fits no module of the model");
  }
}

void add_biases(Decoder& model, const AdapterOptions& options, const std::set<std::string>& targeted,
                FullyTrained& found) {
  if (options.bias == BiasTraining::none) return;
  model.visit([&](Parameter& parameter) {
    const std::string& name = parameter.name;
    if (!name.ends_with(".bias") || found.contains(name)) return;
    const std::string module = module_of(name);
    if (targeted.contains(module)) {
      found[name] = module + ".base_layer.bias";
    } else if (options.bias == BiasTraining::all) {
      found[name] = name;
    }
  });
}

}  // namespace

bool names_module_of(const std::string& entry, const std::string& parameter, const DecoderConfig& config) {
  return names_file_module_of(peft_module(entry, config), peft_tensor(parameter, config));
}

bool names_file_module_of(const std::string& entry, const std::string& parameter) {
  for (size_t end = parameter.rfind('.'); end != std::string::npos && end > 0; end = parameter.rfind('.', end - 1)) {
    if (parameter.substr(0, end).ends_with(entry)) return true;
  }
  return false;
}

FullyTrained find_fully_trained(Decoder& model, const AdapterOptions& options, const std::set<std::string>& targeted,
                                const PeftAdapter* stored) {
  FullyTrained found;
  untie_where_needed(model, options);
  add_modules(model, options, stored, found);
  std::set<std::string> with_bias;
  for (const std::string& module : targeted) with_bias.insert(name_in_first_layer(model.config(), module));
  add_biases(model, options, with_bias, found);
  for (const auto& [parameter, name] : found) {
    if (first_layer_of_block(model.config(), parameter) < 0) continue;
    throw UsageError("the adapter would train " + parameter + ", which several layers share and PEFT parts",
                     "leave it out of modules_to_save and bias", "adapter");
  }
  return found;
}

void train_fully(Decoder& decoder, const AdapterOptions& options, const FullyTrained& parameters, bool trainable,
                 RankContext& rank) {
  decoder.visit_linears([&](Linear& linear) {
    if (!parameters.contains(linear.name() + ".weight") || linear.weight().parameter()) return;
    if (linear.weight().storage().empty()) return;  // another rank has it
    throw UsageError("modules_to_save names " + linear.name() + ", whose weight is packed and cannot be trained",
                     "keep the module in 16 bits (model.skip_modules), or leave it out");
  });
  untie_where_needed(decoder, options);
  decoder.visit([&](Parameter& parameter) {
    const auto found = parameters.find(parameter.name);
    if (found != parameters.end()) own(parameter, found->second, trainable, rank.pool);
  });
}

}  // namespace nibble
