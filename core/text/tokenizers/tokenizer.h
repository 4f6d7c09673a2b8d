#pragma once
// Text to token ids and back. One abstract class over the tokenizers that models come with; load_tokenizer opens
// whichever of their files is there.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

/// A token and the bytes [begin, end) of the text it stands for. Tokens that encoding adds (BOS, EOS, templates of the
/// post-processor) stand for nothing: begin == end. Spans do not decrease; where one character becomes several tokens
/// (bytes, normalization), each of them spans what it was made from, so spans may overlap.
struct TokenSpan {
  int32_t id = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

/// Is given tokens of a text, some at a time, from left to right.
using TakeTokens = std::function<void(std::span<const TokenSpan> tokens)>;

/// Which tokens play a part, and the chat templates that come with the model.
struct TokenRoles {
  std::optional<int32_t> bos, eos, pad, unk;
  /// By name; the model's usual one is "default". Jinja text, as written in tokenizer_config.json, chat_template.json
  /// or chat_template.jinja.
  std::map<std::string, std::string> chat_templates;
  /// Text of the tokens that templates know by name: "bos_token", "eos_token", "pad_token", ...
  std::map<std::string, std::string> special_tokens;
};

/// A tokenizer. Constant after it is made: all its functions may be called from many threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Ids of `text` (UTF-8). With add_special the tokens that the tokenizer puts around a text are added. Special
  /// tokens that the text spells (`</s>`) become that token. Throws InputError when text is not UTF-8 or when a regular
  /// expression of the tokenizer takes too long on it.
  virtual std::vector<int32_t> encode(std::string_view text, bool add_special = true) const = 0;

  /// As encode, with the bytes of `text` each token stands for.
  virtual std::vector<TokenSpan> encode_with_offsets(std::string_view text, bool add_special = true) const = 0;

  /// The tokens of encode_with_offsets without the added ones. Where the tokenizer cuts a text in words anyway, a long
  /// one goes through in windows, so that what is held beside `text` does not grow with it.
  virtual void encode_in_pieces(std::string_view text, const TakeTokens& take) const = 0;

  /// The text of `ids`: UTF-8, broken sequences of bytes become U+FFFD. With skip_special special tokens give no text.
  /// Throws InputError for an id outside the vocabulary.
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special = false) const = 0;

  /// The token as the vocabulary spells it ("Ġthe", "▁the", "<0x0A>"). Throws InputError for an id outside it.
  virtual std::string token(int32_t id) const = 0;

  /// The id of a token as the vocabulary spells it, added tokens too.
  virtual std::optional<int32_t> id_of(std::string_view token) const = 0;

  /// True for control and special tokens, which decode leaves out on request.
  virtual bool is_special(int32_t id) const = 0;

  /// One more than the largest id.
  virtual int32_t vocab_size() const = 0;

  /// What encode with add_special puts in front of a text: BOS, or nothing.
  std::vector<int32_t> prefix_ids() const;

  std::optional<int32_t> bos_id() const { return roles_.bos; }
  std::optional<int32_t> eos_id() const { return roles_.eos; }
  std::optional<int32_t> pad_id() const { return roles_.pad; }
  const TokenRoles& roles() const { return roles_; }
  void set_roles(TokenRoles roles) { roles_ = std::move(roles); }

 private:
  TokenRoles roles_;
};

/// Opens the tokenizer of a model directory, or a single tokenizer file. Looked for in this order: `tokenizer.json`
/// (ids as Hugging Face's tokenizers gives them; its padding and truncation are ignored), `vocab.json` with
/// `merges.txt` (the pipeline of the class that tokenizer_config.json names), `tokenizer.model` (ids as sentencepiece
/// gives them, BOS in front when special tokens are asked for). Roles and chat templates come from
/// tokenizer_config.json, special_tokens_map.json, chat_template.json or .jinja, and config.json beside it. Throws
/// IoError when nothing can be read, InputError naming file and place when a file is broken.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& directory_or_file);

/// Decodes ids one at a time, as generation gives them: only whole characters come out, and what has come out together
/// with finish() is the decoded text of all ids.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  /// Takes the next id; returns the text that is certain now (often empty inside a character of several tokens).
  std::string push(int32_t id);

  /// What is left: an incomplete character becomes U+FFFD.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::vector<int32_t> window_;  // the ids still needed: some that are out already, for context, then the held ones
  size_t emitted_ids_ = 0;       // how many at the start of window_ are out
};

}  // namespace nibble
