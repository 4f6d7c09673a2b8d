#include "nibble/cli/command_line/model_flags.h"
#include "nibble/cli/printing/say.h"

#include <charconv>
#include <cstdio>

#include "nibble/core/base/error.h"
#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/io/hub/run_result.h"
#include "nibble/core/io/npy.h"
#include "nibble/quant/tables.h"
#include "nibble/recipes/models/fingerprints.h"

namespace nibble::cli {

namespace {

std::vector<std::vector<int32_t>> read_npy_rows(const std::string& path) {
  const Tensor ids = read_npy(path);
  if ((ids.dtype() != DType::i64 && ids.dtype() != DType::i32) || ids.rank() < 1 || ids.rank() > 2 ||
      ids.numel() == 0) {
    throw InputError(path, "holds no token ids", "use an int64 or int32 array [T] or [B, T]");
  }
  const int64_t count = ids.rank() == 2 ? ids.dim(0) : 1, length = ids.numel() / count;
  std::vector<std::vector<int32_t>> rows(static_cast<size_t>(count));
  for (int64_t i = 0; i < ids.numel(); ++i) {
    const int64_t id = ids.dtype() == DType::i64 ? ids.data<const int64_t>()[i] : ids.data<const int32_t>()[i];
    if (id != static_cast<int32_t>(id)) throw InputError(path, "id " + std::to_string(id) + " is out of range");
    rows[static_cast<size_t>(i / length)].push_back(static_cast<int32_t>(id));
  }
  return rows;
}

}  // namespace

Argument model_option(Command& command, std::string& path, const std::string& help) {
  return command.option(
      "--model", [&path](const std::string& named) { path = find_model(named); }, help);
}

Argument adapter_option(Command& command, std::string& path, const std::string& help) {
  return command.option(
      "--adapter", [&path](const std::string& named) { path = find_adapter(named); }, help);
}

void add_model_and_adapter(Command& command, std::string& model, std::string& adapter, const std::string& use) {
  model_option(command, model,
               "Model directory, or a run's, or ID in the Hugging Face cache; 16/32-bit or bitsandbytes 4-bit "
               "(default: the base that the adapter names)");
  command.option(  // read after --model, since it stands behind it
      "--adapter",
      [&](const std::string& named) {
        adapter = find_adapter(named);
        if (model.empty()) model = find_base(adapter).string();
      },
      "PEFT adapter directory, or a run's" + use);
}

void require_model(const std::string& model) {
  if (model.empty()) throw UsageError("--model is required", "or --adapter, which names its base");
  link_roots(model);  // throws unless it is a directory
}

void add_model_flags(Command& command, ModelFlags& flags) {
  ModelRecipe& base = flags.base;
  add_model_and_adapter(command, base.path, flags.adapter, "");
  command
      .option(
          "--compute-dtype",
          [&base](const std::string& name) {
            base.compute_dtype.reset();
            if (name == "f32") base.compute_dtype = ComputeDtype::f32;
            if (name == "bf16") base.compute_dtype = ComputeDtype::bf16;
            if (name == "int8") base.compute_dtype = ComputeDtype::int8;
            base.names_dtype = base.compute_dtype.has_value();
          },
          "Dtype of the products (auto: bf16 where the CPU has it; int8: as a recipe's)")
      .one_of({"f32", "bf16", "int8", "auto"});
  command
      .option(
          "--quantize", [&base](const std::string& name) { base.quantize = find_quant_type(name); },
          "Hold a 16/32-bit base in 4 bits")
      .one_of({"none", "nf4", "fp4"});
  command.flag("--double-quant,!--no-double-quant", base.double_quant, "Quantize the scales as well (default)");
  command.option("--threads", flags.threads, "Threads (0: all cores)").between(0, kMostThreads);
}

void warn_of_other_base(const ModelFlags& flags) {
  if (flags.adapter.empty()) return;
  const std::string warning = base_warning(flags.adapter, flags.base, "--quantize ");
  if (!warning.empty()) say(stderr, warning);
}

Decoder open_model(const ModelFlags& flags, RankContext& rank, Train train) {
  require_model(flags.base.path);
  warn_of_other_base(flags);
  return nibble::open_model(flags.base, flags.adapter, train, rank);
}

TextSource text_source(const ModelFlags& flags, const std::optional<std::string>& chat_template) {
  require_model(flags.base.path);
  TextSource source = find_text_source(flags.base.path, flags.adapter, chat_template);
  for (const std::string& note : source.notes) say(stderr, "note: " + note);
  if (!flags.adapter.empty() && trained_in_int8(flags.adapter) && !flags.base.int8()) {
    say(stderr, "note: the adapter was trained with products in 8 bits, this computes in " +
                    describe_arithmetic(flags.base) + " (--compute-dtype int8 for the same)");
  }
  return source;
}

std::vector<std::vector<int32_t>> read_id_rows(const std::string& text, const std::string& flag) {
  if (text.ends_with(".npy")) return read_npy_rows(text);
  std::vector<int32_t> ids;
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p != end;) {
    int32_t id = 0;
    const auto [next, error] = std::from_chars(p, end, id);
    const bool separated = next == end || (*next == ',' && next + 1 != end);
    if (error != std::errc() || !separated) {
      throw UsageError(flag + " " + text + " is neither an .npy file nor a list of ids", "write ids as 1,403,407");
    }
    ids.push_back(id);
    p = next == end ? end : next + 1;
  }
  if (ids.empty()) throw UsageError(flag + " is empty", "write ids as 1,403,407");
  return {ids};
}

}  // namespace nibble::cli
