#pragma once
// Tokenizer and chat template of a model, as recipes and commands need them.

#include <memory>
#include <string>

#include "nibble/core/data/encoder.h"
#include "nibble/core/text/chat_template.h"
#include "nibble/core/text/tokenizer.h"

namespace nibble {

/// The tokenizer in a model directory (or file); null when the directory has no tokenizer files, so that such a model
/// still serves token ids. Throws as load_tokenizer for files that are broken.
std::unique_ptr<Tokenizer> find_tokenizer(const std::string& path);

/// The built-in template `name`, the template in the file `name`, or for "" the model's own. Throws UsageError for an
/// unknown name, or for "" where the model has none, naming the built-in ones; InputError for a broken template.
std::unique_ptr<ChatTemplate> open_chat_template(const std::string& name, const Tokenizer& tokenizer);

/// Rows that the embedding of a model with `model_rows` needs for the tokenizer at `path`: as many, or more where
/// tokens were added to the tokenizer. Throws InputError when it has more than an eighth more: another model's
/// tokenizer.
int64_t rows_for_tokenizer(const std::string& path, int64_t model_rows);

/// The encoder over the tokenizer at `path` and the template `chat_template` ("": the model's own, where it has one;
/// a broken one is reported by the first conversation); over token ids only where
/// there is no tokenizer. vocab_size: of the model. Throws InputError when the tokenizer has more tokens than the
/// model.
Encoder open_encoder(const std::string& path, const std::string& chat_template, int64_t vocab_size);

}  // namespace nibble
