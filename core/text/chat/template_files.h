#pragma once
// The chat templates and special tokens that a model directory comes with.

#include <filesystem>
#include <map>
#include <string>

namespace nibble {

struct TemplateFiles {
  /// By name; the model's usual one is "default". Jinja text.
  std::map<std::string, std::string> templates;
  /// Text by name ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"), as far
  /// as the files give them.
  std::map<std::string, std::string> special_tokens;
  /// Names that the files give as null: tokens that the model has not.
  std::map<std::string, bool> without;
};

/// Reads tokenizer_config.json (a template, or a list of them by name), chat_template.json, chat_template.jinja and
/// additional_chat_templates/*.jinja (a later one of these wins), and special_tokens_map.json. Files that are not there
/// are passed over. Throws InputError for a file that is no JSON.
TemplateFiles read_template_files(const std::filesystem::path& directory);

}  // namespace nibble
