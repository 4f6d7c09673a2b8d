#pragma once
// The "post_processor" of tokenizer.json: the special tokens that encoding puts around a text.

#include <cstdint>
#include <vector>

#include "nibble/core/text/tokenizers/json/json_fields.h"
#include "nibble/core/text/tokenizers/tokenizer.h"

namespace nibble {

class PostProcessor {
 public:
  PostProcessor() = default;

  /// As tokenizer.json describes it. Known: TemplateProcessing (its form for one text), BertProcessing,
  /// RobertaProcessing, ByteLevel (adds nothing), Sequence.
  explicit PostProcessor(const JsonFields& description);

  /// The tokens of a text of `text_size` bytes with special tokens around them.
  std::vector<TokenSpan> apply(std::vector<TokenSpan> tokens, bool add_special, size_t text_size) const;

 private:
  struct Part {
    bool is_text = false;      // the tokens so far, or
    std::vector<int32_t> ids;  // these
  };
  using Template = std::vector<Part>;

  void add(const JsonFields& description);

  std::vector<Template> steps_;
};

}  // namespace nibble
