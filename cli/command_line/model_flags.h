#pragma once
// The flags by which commands name a model, an adapter and how to compute.

#include <optional>
#include <string>
#include <vector>

#include "nibble/cli/command_line/command.h"
#include "nibble/recipes/models/open_model.h"
#include "nibble/recipes/models/tokenizers.h"

namespace nibble::cli {

struct ModelFlags {
  ModelRecipe base;
  std::string adapter;
  int threads = 0;
};

/// --model: a directory, the directory of a run, or an ID in the Hugging Face cache.
Argument model_option(Command& command, std::string& path, const std::string& help);
/// --adapter: a PEFT directory, the directory of a run, or an ID in the Hugging Face cache.
Argument adapter_option(Command& command, std::string& path, const std::string& help);

/// --model and --adapter; where --model is not given, the model is the base that the adapter names (find_base).
void add_model_and_adapter(Command& command, std::string& model, std::string& adapter, const std::string& use);
/// Throws UsageError where neither of these named a model.
void require_model(const std::string& model);

/// --model, --adapter, --compute-dtype, --quantize, --double-quant|--no-double-quant, --threads.
void add_model_flags(Command& command, ModelFlags& flags);

/// Says on stderr that the adapter was trained on another base than the model of these flags.
void warn_of_other_base(const ModelFlags& flags);

/// The model of these flags with its adapter; warns as above.
Decoder open_model(const ModelFlags& flags, RankContext& rank, Train train = Train::nothing);

/// The tokenizer of these flags and, where one is used, the chat template (find_text_source); where the adapter's are
/// not the model's, stderr says so.
TextSource text_source(const ModelFlags& flags, const std::optional<std::string>& chat_template = std::nullopt);

/// The token ids of `text`: the path of an .npy file (int64 or int32, [T] or [B, T]) or a comma-separated list; one row
/// a sequence. `flag` names them in errors. Throws UsageError or InputError.
std::vector<std::vector<int32_t>> read_id_rows(const std::string& text, const std::string& flag);

}  // namespace nibble::cli
