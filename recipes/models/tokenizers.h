#pragma once
// Tokenizer and chat template of a model, as recipes and commands need them.

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nibble/adapters/peft/peft_directory.h"
#include "nibble/core/data/encoder.h"
#include "nibble/core/text/chat/chat_template.h"
#include "nibble/core/text/tokenizers/tokenizer.h"
#include "nibble/core/train/telemetry/observer.h"

namespace nibble {

/// The tokenizer in a model directory (or file); null when the directory has no tokenizer files, so that such a model
/// still serves token ids. Throws as load_tokenizer for files that are broken.
std::unique_ptr<Tokenizer> find_tokenizer(const std::string& path);

/// The text of ids, special tokens as line breaks between what is not empty; the ids where `tokenizer` is null or one
/// of them is beyond it.
std::string text_of(const Tokenizer* tokenizer, std::span<const int32_t> ids);
/// The same without special tokens and anything in their place: an answer as reward functions read it.
std::string answer_text(const Tokenizer* tokenizer, std::span<const int32_t> ids);

/// The built-in template `name`, the template in the file `name`, or for "" the model's own. Throws UsageError for an
/// unknown name, InputError for "" where the model has none, both naming the built-in ones, and for a broken template.
std::unique_ptr<ChatTemplate> open_chat_template(const std::string& name, const Tokenizer& tokenizer);

/// What ends an answer where `chat_template` (as open_chat_template takes it) renders the conversations: turn_end_ids.
std::vector<int32_t> answer_ends(const Tokenizer& tokenizer, const std::string& chat_template);

/// The text of the Jinja template that open_chat_template(name) opens: the file's, or the built-in one's.
std::string chat_template_source(const std::string& name);

/// Tokenizer and template that an adapter trained with them keeps: the files of `tokenizer` (a directory, or a file in
/// one), and `chat_template` where it is not empty. Where one of the files is a link that leads out of the directory
/// (see CheckpointDir) none is kept, and the observer is notified.
AdapterCompanions adapter_companions(const std::filesystem::path& tokenizer, const std::string& chat_template,
                                     const Observer& observer);

/// Where tokenizer and chat template of a model are, and of an adapter that has its own.
struct TextSource {
  std::string tokenizer;           ///< directory or file
  std::string chat_template;       ///< as open_chat_template takes it
  std::vector<std::string> notes;  ///< where the adapter differs from the model
};

/// Those that the adapter in the directory `adapter` ("": none) was trained with, where it keeps any, else those of the
/// model in `model`. `chat_template` goes before both where it is not empty; without one no template is asked for.
TextSource find_text_source(const std::string& model, const std::string& adapter,
                            const std::optional<std::string>& chat_template);

/// A warning for each mark of the built-in template `chat_template` that is no token of the encoder's tokenizer; none
/// for other templates.
std::vector<std::string> missing_mark_warnings(const std::string& chat_template, const Encoder& encoder);

/// Tokens of the tokenizer at `path`, 0 where there is none.
int64_t tokenizer_vocab_size(const std::string& path);

/// Rows that the embedding of a model with `model_rows` needs for the tokenizer at `path`, of `tokens`: as many, or
/// more where tokens were added to the tokenizer. Throws InputError when it has more than an eighth more: another
/// model's tokenizer.
int64_t rows_for_tokenizer(const std::string& path, int64_t tokens, int64_t model_rows);

/// What to know where training gives a model of `model_rows` `rows` for its tokenizer; empty where it has as many.
std::string added_tokens_note(int64_t model_rows, int64_t rows);

/// What decides ids and rendered text: the files of the tokenizer at `path` and their chat templates, and the file
/// `chat_template` where it is one ("data.template"), name -> content_hash. Empty where there is no tokenizer.
std::map<std::string, std::string> tokenizer_contents(const std::filesystem::path& path,
                                                      const std::string& chat_template);

/// The encoder over the tokenizer at `path` and the template `chat_template` ("": the model's own, where it has one;
/// a broken one is reported by the first conversation); over token ids only where
/// there is no tokenizer. vocab_size: of the model. Throws InputError when the tokenizer has more tokens than the
/// model, or, where the model `grows`, as rows_for_tokenizer, whose rows are then those of the Encoder.
Encoder open_encoder(const std::string& path, const std::string& chat_template, int64_t vocab_size, bool grows = false);

}  // namespace nibble
