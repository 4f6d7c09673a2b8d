#include "nibble/core/base/error.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/io/json/mistaken_file.h"
#include "nibble/core/text/tokenizers/gguf_tokenizer.h"
#include "nibble/core/text/tokenizers/json/json_fields.h"
#include "nibble/core/text/tokenizers/json/json_tokenizer.h"
#include "nibble/core/text/tokenizers/sentencepiece/sentencepiece_tokenizer.h"
#include "nibble/core/text/tokenizers/token_roles.h"
#include "nibble/core/text/tokenizers/tokenizer.h"

namespace nibble {

namespace {

namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// Transformers' LlamaTokenizer: `legacy` puts the blank in front of every part between special tokens.
bool uses_prefix_after_special(const fs::path& directory) {
  const fs::path path = directory / "tokenizer_config.json";
  if (!is_file(path)) return true;
  const nlohmann::json config = read_json_file(path, kTokenizerLimits);
  return !config.is_object() || !config.contains("legacy") || config["legacy"] != false;
}

std::unique_ptr<Tokenizer> open_vocab_and_merges(const fs::path& directory) {
  auto tokenizer = open_tokenizer_json(describe_vocab_and_merges(directory), (directory / "vocab.json").string());
  const std::optional<int32_t> end = tokenizer->id_of("<|endoftext|>");
  TokenRoles roles;
  roles.bos = roles.eos = roles.unk = end;
  tokenizer->set_roles(std::move(roles));
  return tokenizer;
}

std::unique_ptr<Tokenizer> open_model_file(const fs::path& file) {
  std::string bytes = read_text_file(file, kTokenizerLimits.max_bytes);
  if (!is_rank_file(bytes))
    return open_sentencepiece(std::move(bytes), file.string(), uses_prefix_after_special(file.parent_path()));
  auto tokenizer = open_tokenizer_json(describe_rank_file(bytes, file.string()), file.string());
  TokenRoles roles;
  roles.bos = tokenizer->id_of("<|begin_of_text|>");
  roles.eos = tokenizer->id_of("<|end_of_text|>");
  tokenizer->set_roles(std::move(roles));
  return tokenizer;
}

std::unique_ptr<Tokenizer> open_json_file(const fs::path& file) {
  return open_tokenizer_json(read_json_file(file, kTokenizerLimits), file.string());
}

std::unique_ptr<Tokenizer> open_directory(const fs::path& directory) {
  if (is_file(directory / "tokenizer.json")) return open_json_file(directory / "tokenizer.json");
  if (is_file(directory / "vocab.json") && is_file(directory / "merges.txt")) return open_vocab_and_merges(directory);
  if (is_file(directory / "tokenizer.model")) return open_model_file(directory / "tokenizer.model");
  throw InputError(directory.string(),
                   "has no tokenizer: neither tokenizer.json, nor vocab.json with merges.txt, nor tokenizer.model",
                   "put the tokenizer's files there or name another directory");
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& directory_or_file) {
  std::error_code ignored;
  const bool is_directory = fs::is_directory(directory_or_file, ignored);
  if (!is_directory && !fs::exists(directory_or_file, ignored))
    throw IoError(directory_or_file.string(), "is not there", missing_path_remedy(directory_or_file.string(), ""));
  if (!is_directory && directory_or_file.extension() == ".gguf") return open_gguf_tokenizer(directory_or_file);
  auto tokenizer = is_directory                               ? open_directory(directory_or_file)
                   : directory_or_file.extension() == ".json" ? open_json_file(directory_or_file)
                                                              : open_model_file(directory_or_file);
  const fs::path directory = is_directory ? directory_or_file : directory_or_file.parent_path();
  tokenizer->set_roles(read_token_roles(directory, *tokenizer));
  return tokenizer;
}

}  // namespace nibble
