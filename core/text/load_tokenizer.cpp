#include <fstream>
#include <sstream>

#include "nibble/core/base/error.h"
#include "nibble/core/text/json_file.h"
#include "nibble/core/text/sentencepiece_tokenizer.h"
#include "nibble/core/text/token_roles.h"
#include "nibble/core/text/tokenizer.h"

namespace nibble {

namespace {

namespace fs = std::filesystem;

bool uses_prefix_after_special(const fs::path& directory) {
  const fs::path path = directory / "tokenizer_config.json";
  if (!fs::is_regular_file(path)) return true;
  const nlohmann::json config = read_json_file(path);
  const auto legacy = config.is_object() ? config.find("legacy") : config.end();
  return legacy == config.end() || !legacy->is_boolean() || legacy->get<bool>();
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& directory_or_file) {
  std::error_code ignored;
  const bool is_directory = fs::is_directory(directory_or_file, ignored);
  if (!is_directory && !fs::exists(directory_or_file, ignored))
    throw IoError(directory_or_file.string(), "is not there", "give a model directory or a tokenizer file");
  const fs::path directory = is_directory ? directory_or_file : directory_or_file.parent_path();
  const fs::path model = is_directory ? directory / "tokenizer.model" : directory_or_file;
  if (!fs::is_regular_file(model, ignored))
    throw InputError(directory.string(),
                     "has no tokenizer: neither tokenizer.json, nor vocab.json with merges.txt, nor tokenizer.model",
                     "put the tokenizer's files there or name another directory");
  auto tokenizer = open_sentencepiece(read_whole_file(model, kMaxTokenizerBytes), model.string(),
                                      uses_prefix_after_special(directory));
  tokenizer->set_roles(read_token_roles(directory, *tokenizer));
  return tokenizer;
}

}  // namespace nibble
