#include "nibble/recipes/models/export_model.h"
#include "nibble/adapters/peft/adapter_names.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "nibble/adapters/peft/random_starts.h"
#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/io/hub/fp8_tensor.h"
#include "nibble/core/io/hub/model_directory.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/models/load.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/text/chat/turn_ends.h"
#include "nibble/parallel/pipeline/collect.h"
#include "nibble/parallel/pipeline/tied_embedding.h"
#include "nibble/parallel/tensor/global_tensor.h"
#include "nibble/recipes/models/tokenizers.h"

namespace nibble {

namespace {

// config.json names the dtype under "torch_dtype" or, as Transformers 5 writes it, "dtype".
DType dtype_of_config(const nlohmann::json& config, const std::string& place) {
  const std::string name = config.value("dtype", config.value("torch_dtype", std::string("float32")));
  if (name == "float32") return DType::f32;
  if (name == "bfloat16") return DType::bf16;
  if (name == "float16") return DType::f16;
  throw InputError(place, "dtype " + name + " is not known", "use float32, bfloat16 or float16");
}

// As Transformers says it; names of labels that are there stay.
void say_score_head(const DecoderConfig& model, nlohmann::json& config) {
  config["architectures"] = {score_architecture(model)};
  const auto named = config.find("id2label");
  if (named != config.end() && std::ssize(*named) == model.score_labels) return;
  config["id2label"] = config["label2id"] = nlohmann::json::object();
  for (int64_t k = 0; k < model.score_labels; ++k) {
    const std::string name = "LABEL_" + std::to_string(k);
    config["id2label"][std::to_string(k)] = name;
    config["label2id"][name] = k;
  }
}

Tensor in_dtype(const Tensor& value, DType dtype, RankContext& rank) {
  if (value.dtype() == dtype) return value;
  Tensor converted = Tensor::empty(rank.pool.host(), value.shape(), dtype);
  ops::cast(value, converted);
  return converted;
}

void compare_with_written(const NamedTensor& tensor, const CheckpointDir& written, DType dtype, RankContext& rank) {
  const Tensor expected = in_dtype(tensor.value, dtype, rank), got = written.at(tensor.name);
  if (got.shape() != expected.shape() || got.dtype() != dtype ||
      std::memcmp(got.raw(), expected.raw(), expected.bytes()) != 0) {
    throw IoError(written.path().string(), tensor.name + " does not read back as it was written", "check the disk");
  }
  release_pages(got);
}

// Where the files have tensors that are passed over, and that a model without would lack: indexers.
std::optional<CheckpointDir> base_of_untrained(const DecoderConfig& config, const std::filesystem::path& base) {
  if (config.passed_over.empty() || !std::filesystem::is_directory(base) || !holds_weights(base)) return {};
  return CheckpointDir(base);
}

std::vector<std::string> untrained_names(const DecoderConfig& config, const CheckpointDir& base) {
  std::vector<std::string> names;
  std::ranges::copy_if(base.names(), std::back_inserter(names), [&](const std::string& name) {
    return name.find(config.passed_over) != std::string::npos && fp8_weight_of(base, name).empty();
  });
  return names;
}

// Gives the global tensors of this rank's layers, put together from its tensor-parallel shards or with the experts of
// other ranks; the first of those ranks gives.
void give_global(Decoder& model, const ParallelModel& parallel, const std::vector<NamedTensor>& tensors,
                 RankContext& rank, const std::function<void(const NamedTensor&)>& give) {
  const Mesh& mesh = parallel.mesh();
  Communicator& ranks = mesh.tensor().size() > 1 ? mesh.tensor() : mesh.experts();
  if (ranks.size() == 1 || mesh.data().rank() >= mesh.experts().size()) {
    for (const NamedTensor& tensor : tensors) give(tensor);
    return;
  }
  std::map<std::string, ShardSpec> specs;
  model.visit([&](Parameter& parameter) { specs[parameter.name] = parameter.shard; });
  std::vector<NamedTensor> own;
  for (const NamedTensor& tensor : tensors) {
    if (parallel.is_of_own_experts(tensor.name)) {
      own.push_back(tensor);
      continue;
    }
    const Tensor global = gather_on_first(ranks, tensor.name, tensor.value, specs[tensor.name], rank.pool.host());
    if (global) give({tensor.name, global});
  }
  const auto mine = [&](const std::function<void(const NamedTensor&)>& give_own) {
    std::ranges::for_each(own, give_own);
  };
  collect(ranks, rank.pool.host(), mine, give);
}

// Every tensor of the model, block by block and stage by stage, on the first rank. A tied embedding comes once.
void visit_model(Decoder& model, ParallelModel& parallel, RankContext& rank,
                 const std::function<void(const NamedTensor&)>& take) {
  const auto mine = [&](const std::function<void(const NamedTensor&)>& give) {
    parallel.visit_unsharded([&](const std::vector<NamedTensor>& tensors) {
      std::vector<NamedTensor> own = tensors;
      std::erase_if(own, [&](const NamedTensor& tensor) { return is_tied_copy(model, tensor.name); });
      give_global(model, parallel, own, rank, give);
    });
  };
  collect_stages(parallel.mesh(), rank.pool.host(), mine, take);
}

}  // namespace

void export_model(Decoder& model, ParallelModel& parallel, const std::filesystem::path& config_path,
                  const std::filesystem::path& companions, const std::string& chat_template,
                  const std::filesystem::path& target, RankContext& rank) {
  const std::filesystem::path file =
      std::filesystem::is_directory(config_path) ? config_path / "config.json" : config_path;
  nlohmann::json config = read_json_file(file, kModelConfigJson);
  drop_quantization_config(config);
  if (config.contains("vocab_size")) config["vocab_size"] = model.config().vocab_size;
  if (model.config().score_labels > 0) say_score_head(model.config(), config);
  const DType dtype = dtype_of_config(config, file.string());
  const bool writes = rank.comm.rank() == 0;
  Decoder unsharded = plan_decoder(model.config(), rank);
  std::vector<TensorSpec> specs;
  for (const NamedTensor& tensor : state_dict(unsharded)) specs.push_back({tensor.name, tensor.value.shape(), dtype});
  const std::vector<NamedTensor> constants = stored_constants(model.config(), rank.pool.host());
  for (const NamedTensor& tensor : constants) specs.push_back({tensor.name, tensor.value.shape(), dtype});
  const std::optional<CheckpointDir> base = base_of_untrained(model.config(), config_path);
  const std::vector<std::string> untrained = base ? untrained_names(model.config(), *base) : std::vector<std::string>();
  for (const std::string& name : untrained) specs.push_back(plain_spec(*base, name));

  std::optional<ModelDirectoryWriter> writer;
  if (writes) writer.emplace(target, Replace::anything, specs);
  rank.pool.trim();  // what steps released is of no use to what follows
  visit_model(model, parallel, rank,
              [&](const NamedTensor& tensor) { writer->write(tensor.name, in_dtype(tensor.value, dtype, rank)); });
  std::optional<CheckpointDir> written;
  if (writes) {
    for (const auto& [name, value] : constants) writer->write(name, in_dtype(value, dtype, rank));
    for (const std::string& name : untrained) writer->write(name, read_plain(*base, name, rank.pool.host()));
    write_json_file(writer->path() / "config.json", config);
    copy_companions(companions, writer->path());
    if (!chat_template.empty()) writer->write_text("chat_template.jinja", chat_template_source(chat_template));
    if (model.config().score_labels == 0) complete_end_ids(writer->path());
    writer->finish();
    written.emplace(target);
  }
  visit_model(model, parallel, rank,
              [&](const NamedTensor& tensor) { compare_with_written(tensor, *written, dtype, rank); });
  rank.comm.barrier("export");
}

void export_adapter(Decoder& model, ParallelModel& parallel, const AttachedAdapter& adapter,
                    const AdapterCompanions& companions, const std::filesystem::path& target, RankContext& rank) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  parallel.with_trainable([&] {
    const auto mine = [&](const std::function<void(const NamedTensor&)>& give) {
      std::vector<NamedTensor> own;
      for (const auto& [name, value] : saved_tensors(model, adapter, rank.pool)) own.push_back({name, value});
      give_global(model, parallel, own, rank, give);
    };
    collect_stages(parallel.mesh(), rank.pool.host(), mine,
                   [&](const NamedTensor& tensor) { tensors.emplace_back(tensor.name, tensor.value); });
    tensors.insert(tensors.end(), adapter.tables.begin(), adapter.tables.end());
    if (rank.comm.rank() == 0) {
      write_peft_directory(target, in_peft_names(saved_options(adapter), model.config()),
                           in_peft_names(tensors, model.config()), Replace::anything, companions);
    }
    tensors.clear();
  });
  rank.comm.barrier("export");
}

}  // namespace nibble
