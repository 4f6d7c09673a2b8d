#pragma once
// Adapters in and out of a Decoder.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "nibble/adapters/new_adapter.h"
#include "nibble/adapters/options.h"
#include "nibble/adapters/peft/peft_directory.h"
#include "nibble/core/models/decoder.h"

namespace nibble {

/// What attaching did.
struct AttachedAdapter {
  AdapterOptions options;               ///< as they go into adapter_config.json: targets written out
  std::vector<std::string> modules;     ///< paths of embeddings and Linears with an adapter, in module order
  std::vector<std::string> parameters;  ///< paths of tensors of all experts with an adapter
  std::vector<std::string> notes;       ///< what the user should know, see AdapterPlan
  /// What modules started from that the base alone does not determine (pissa_niter_N): such an adapter is saved as a
  /// plain LoRA of twice the rank.
  std::map<std::string, LowRankFactors> random_starts;
  /// Frozen tables of the adapter's file under their PEFT names, which are saved with it again.
  std::vector<std::pair<std::string, Tensor>> tables;
  /// Weights of the base itself were replaced (modules_to_save, biases, tables, starts that are taken from weights): a
  /// pass with StepContext::adapters_enabled = false is not the base's then.
  bool base_changed = false;
};

/// Puts a new adapter into every Linear and embedding that the options select; the base is frozen. A and B are
/// functions of (rank.seed, module path) only, but for starts that are taken from the base, which may change it: pissa,
/// olora. modules_to_save, biases and rows of tokens that are trained become trainable under their PEFT names.
/// `original` gives LoftQ the weights before they were rounded. Throws UsageError (nothing selected; a 4-bit module in
/// modules_to_save; values that cannot be).
AttachedAdapter attach_adapter(Decoder& decoder, const AdapterOptions& options, RankContext& rank,
                               const OriginalWeight& original = {});

/// Puts the adapter of a PEFT directory into the decoder, to train on (trainable) or for inference. The modules are
/// those of the file, ranks those of its tensors. Tables of a larger vocabulary in it, and token ids above the model's,
/// make embedding and head grow. Throws InputError when nothing in it fits the model, or a shape does
/// not; tensors without a place and modules without tensors are named in the notes.
AttachedAdapter load_adapter(Decoder& decoder, const PeftAdapter& adapter, bool trainable, RankContext& rank);

/// The adapter's tensors under their PEFT names, in module order: what save_adapter writes.
std::vector<std::pair<std::string, Tensor>> adapter_tensors(Decoder& decoder);

/// Writes the adapter in `decoder` as a PEFT directory (see write_peft_directory).
void save_adapter(Decoder& decoder, const AttachedAdapter& attached, const std::filesystem::path& directory,
                  Replace replace = Replace::nothing);

}  // namespace nibble
