#pragma once
// How llama.cpp names and lays out the models it knows: what gguf's convert_hf_to_gguf.py writes for each family.

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/core/base/error.h"
#include "nibble/core/io/gguf/gguf.h"
#include "nibble/core/models/decoder_config.h"
#include "nibble/core/models/families/gguf/gguf_form.h"

namespace nibble {

/// Rows first, ..., first + count - 1 of matrices: of one, [count, in] in llama.cpp, or of all experts of a layer, one
/// after another in [experts, count, in].
struct GgufRows {
  std::vector<std::string> sources;  ///< one tensor, which holds a matrix or those of all experts, or one per expert
  int64_t first = 0, count = 0;
  int64_t experts = 0;  ///< 0: of one matrix; a source of two dimensions may hold them one below another
  int64_t step = 1;     ///< rows first, first + step, ...
  bool turned = false;  ///< each is [in, count] in llama.cpp
};

/// A tensor of llama.cpp that may stand in the place of several: each of its matrices is of `rows` rows, of which those
/// from `first` on are a part's.
struct GgufFused {
  std::string name;
  int64_t first = 0, rows = 0;
};

/// A tensor of llama.cpp and the tensor it is made from.
struct GgufPart {
  std::string name;    ///< "blk.0.attn_q.weight"
  std::string source;  ///< "model.layers.0.self_attn.q_proj.weight"
  /// Row i is row row_order[i] of the source (rope in llama.cpp's order, fused projections apart); empty: as it is.
  std::vector<int64_t> row_order;
  bool transposed = false;                 ///< the source is [in, out]
  float added = 0;                         ///< added to each element (Gemma's norms)
  bool is_matrix = false;                  ///< of a Linear or a table: stored in the type asked for
  std::optional<GgufRows> rows = {};       ///< or: made from these, `source` being the first
  bool squeezed = false;                   ///< dimensions of 1 are left out
  std::vector<int64_t> column_order = {};  ///< the same of columns; empty: as they are
  std::vector<float> factors = {};         ///< of every row of the result, or one of all; empty: ones
  bool is_log = false;                     ///< -exp of each element (the decay of state spaces)
  Shape shape = {};                        ///< where it is not the source's; the elements follow in the same order
  bool optional = false;                   ///< may be absent, as biases may
  bool adapts = true;                      ///< llama.cpp computes its product with adapters beside the model
  std::optional<GgufFused> fused = {};     ///< of files that have it with others in one tensor
};

/// All tensors of one model on their way into a list.
class GgufParts {
 public:
  explicit GgufParts(const DecoderConfig& config) : config_(config) {}

  std::vector<GgufPart> all;

  void add(GgufPart part) { all.push_back(std::move(part)); }
  /// A matrix that has no bias; `part` says what else is special about it.
  void matrix(const std::string& name, const std::string& module, GgufPart part = {});
  /// A Linear, whose bias may be absent; factor: of its outputs.
  void linear(const std::string& name, const std::string& module, const std::vector<int64_t>& order = {},
              float factor = 1);
  /// A fused projection as two matrices of `half` rows each.
  void halves(const std::string& first, const std::string& second, const std::string& module, int64_t half);
  /// end: of its weight's name.
  void norm(const std::string& name, const std::string& module, std::string_view end = ".weight");
  /// The projections of attention, from: "model.layers.0.", to: "blk.0."; factors: of queries and values, keys, and of
  /// what attention adds.
  void attention(const LayerConfig& layer, const std::string& from, const std::string& to, float input = 1,
                 float keys = 1, float output = 1);

 private:
  const DecoderConfig& config_;
};

/// What llama.cpp cannot compute.
struct GgufRefusal : UsageError {
  static constexpr const char* kElsewhere = "export to a Hugging Face directory (nibble merge) instead";

  GgufRefusal(const std::string& text, const std::string& of_config)
      : UsageError(text, kElsewhere), reason(text), keys(of_config) {}

  std::string reason;
  std::string keys;  ///< of config.json that may be why, apart by |
};

/// llama.cpp's name of the family, "llama" or "qwen2". Throws UsageError, listing the families there are, for one that
/// is not known here, and for a config that llama.cpp cannot compute (naming what).
std::string gguf_architecture(const DecoderConfig& config);

/// The form of the model's family. Throws UsageError as gguf_architecture() for one that is not known here.
const GgufForm& gguf_form(const DecoderConfig& config);

/// All tensors that a model may have; some of the sources (biases, a tied head) may be absent.
std::vector<GgufPart> gguf_parts(const DecoderConfig& config);

/// Metadata of the model itself, general.architecture first. Where llama.cpp has no sliding window for a family that
/// uses one, the context is said to be no longer than the window.
std::vector<std::pair<std::string, GgufValue>> gguf_hyperparameters(const DecoderConfig& config,
                                                                    const std::string& name);

/// Tensors of factors by which llama.cpp divides the rope frequencies [size / 2]: "rope_freqs.weight" (llama3), or for
/// short and long texts "rope_factors_short.weight" and "rope_factors_long.weight" (longrope); empty where it needs
/// none.
std::map<std::string, std::vector<float>> gguf_rope_factors(const DecoderConfig& config);

/// The model type that a model of llama.cpp's `architecture` becomes ("llama" for Mistral too), or "".
std::string gguf_model_type(const std::string& architecture);
/// All architectures: "llama, qwen2, ...".
std::string gguf_architectures();

}  // namespace nibble
