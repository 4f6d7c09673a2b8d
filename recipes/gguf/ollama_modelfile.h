#pragma once
// A Modelfile for Ollama beside an exported GGUF file: where the model is, its chat template in Ollama's language (Go's
// text/template), what ends an answer, how to sample.

#include <filesystem>
#include <string>

#include "nibble/core/text/chat/chat_template.h"

namespace nibble {

/// The template as Ollama writes it: what stands before, between and behind the contents of conversations of system,
/// user and assistant messages that end with the user's, taken from what `chat_template` makes of some and held against
/// what it makes of others. "" where it has no such form (it changes the contents, or counts the turns). `bos` is left
/// out at the start: pass what the reader of the file adds itself, or "". White space that a template takes away from
/// contents stays; tools are not in it.
std::string ollama_template(const ChatTemplate& chat_template, const std::string& bos);

/// The Modelfile, to be called `name`, for `file`, named relative to where it will lie: FROM, TEMPLATE, `stop`
/// parameters, and temperature, top_k, top_p, min_p and repeat_penalty as the model's generation_config.json says.
/// `model` is the directory of the exported model. A model without a chat template has no TEMPLATE line; of one that
/// has no form in Ollama a comment says so. Throws as load_tokenizer.
std::string ollama_modelfile(const std::string& name, const std::filesystem::path& file,
                             const std::filesystem::path& model);

/// The first line of every Modelfile that is written.
inline constexpr std::string_view kModelfileMark = "# written by nibble export";

}  // namespace nibble
