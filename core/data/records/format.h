#pragma once
// From a record to text with the parts that are trained: prompt formatting and label masks.

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/core/data/data_options.h"
#include "nibble/core/data/encoder.h"
#include "nibble/core/data/records/record_reader.h"

namespace nibble {

/// Tokens of an answer in the format `rollouts`: what their log-probabilities leave of SampleRow::values.
inline constexpr size_t kMostRolloutTokens = 32760;

/// A record as one text, before encoding; for the format `tokens` ids and labels instead.
struct RenderedRecord {
  std::string text;
  std::vector<TextSpan> trained;  ///< bytes whose tokens are trained, in order
  bool add_bos = false;           ///< put the tokenizer's BOS in front (chat: the template writes it)
  bool add_eos = false;           ///< put EOS behind, trained
  bool may_end_itself = false;    ///< chat: no EOS where a special token, and blanks, are the text's end
  bool whole = true;              ///< false: text that may be cut into several sequences
  bool hidden_parts = false;      ///< parts that the chat template does not show were left out
  bool empty_answer = false;      ///< what is trained is white space and the end alone (of a pair: both)
  bool trained_question = false;  ///< an answer begins with what was asked, which is trained with it
  std::vector<int32_t> ids, labels;
  std::vector<RenderedRecord> others;  ///< further samples of the record: its group
  /// A prompt whose encoding is compared with the text's: what they have in common, in all samples of the group, is not
  /// trained, and all behind it is; `trained` then only says where the answer begins.
  std::optional<std::string> prompt = {};
  std::vector<float> values = {};  ///< Sample::values
};

/// The format of a JSON record by its fields: input_ids -> tokens; messages or conversations -> chat; instruction ->
/// alpaca; prompt and completion (or response), question and answer -> completion; text -> text. `fields` renames.
/// Throws InputError naming the fields it has and the ones it could have, and for a record of another objective.
DataFormat detect_format(const std::string& path, const RawRecord& record, const DataOptions& options);

/// For the first records of a file: adds those of options.fields to `used` whose column they have and whose field
/// records of the format read. Throws InputError for one that is in none of the files, when this is the last.
void check_fields(const std::string& path, std::span<const RawRecord> records, DataFormat format,
                  const DataOptions& options, const Encoder& encoder, bool more_files, std::set<std::string>& used);

/// Reads a JSON record. By format:
/// - alpaca: instruction, input (may be absent or empty), output, optional system. The text is Stanford Alpaca's prompt
///   (system replaces its first sentence), then the output, then EOS. With a `chat_template` set, user and assistant
///   turns of that template instead (instruction and input joined by a newline), and `history` [[user, assistant], ...]
///   before.
/// - chat: messages [{role, content}] (OpenAI) or conversations [{from, value}] (ShareGPT: human, gpt, system,
///   function_call, observation), optional system and tools. Content may be a list of text parts; "weight" or
///   "loss_weight" 0 of a turn masks it. The template renders it; EOS follows only where the template ends with a bare
///   answer.
/// - completion: prompt and completion (response), one after the other, then EOS. question and answer (GSM8K) become
///   "Question: ...\nAnswer: ...". With `chat_template` set, one user and one assistant turn. Both may be lists of
///   messages: a conversation of which the completion's answers are trained.
///   Beside an answer of alpaca or completion, turns have system, tools, documents and reasoning as chat has; the text
///   without a chat template has no place for them (alpaca: but for system), see DataOptions::hidden_parts.
/// - text: text, then EOS, all trained.
/// - tokens: input_ids and optionally labels (the id itself or -100, not shifted), as they are; or a list of such lists
///   each, for samples that belong together. TRL's assistant_masks and completion_mask, a 0 or 1 for each token, take
///   tokens from what is trained, as SFTTrainer does; train_on_prompt changes nothing.
/// - preference: a group of two samples, prompt with chosen and prompt with rejected: text, lists of messages, or
///   prompt_ids, chosen_ids, rejected_ids; optional margin. The prompt may be messages, conversations or Alpaca's
///   instruction, too, an answer one message, and OpenAI's input, preferred_output, non_preferred_output are read. A
///   prompt that is not there is what both have in common. system, tools and documents stand before a prompt as in
///   chat; text without a chat template has no place for them.
/// - unpaired: prompt and completion likewise, or messages that end with the answer, or instruction and output; label
///   (or kto_tag): true or false. Values: 1 or 0, and the ids that max_length took.
/// - labeled: text (with `chat_template` set, one user turn), messages or input_ids, label: a number or a list of them.
/// - prompts: prompt: text, messages or prompt_ids, with system, tools and documents as in preference. Nothing is
///   trained: answers come while the run goes on.
/// - rollouts: prompt_ids, completion_ids, reward (or score; null: none), optional old_logprobs and truncated. Values:
///   the reward (nan: none), truncated (1, 0, -1: not said), the old log-probabilities.
/// Everything but the prompt is trained, with train_on_prompt all. Where options.format is automatic, records of
/// another objective (pairs of a better and a worse answer, answers labelled good or bad) are refused: whoever names
/// the format asks for their answers to be trained. Throws InputError ("file:line:column: ...") for malformed JSON,
/// missing or mistyped fields, and ids outside the vocabulary.
RenderedRecord render_record(const std::string& path, const RawRecord& record, DataFormat format,
                             const DataOptions& options, const Encoder& encoder);

/// A .txt document.
RenderedRecord render_document(std::string text);

/// Whether there is nothing in an answer but white space.
bool is_blank(std::string_view text);
bool is_blank(const ChatMessage& answer);

/// Token ids and labels (the id or kIgnoreLabel, not shifted). A token is trained when one of its bytes lies in a
/// trained span (as Hugging Face's assistant mask). EOS is put behind by position; it is not doubled, nor is BOS.
struct EncodedRecord {
  std::vector<int32_t> ids;
  std::vector<int32_t> labels;
  bool whole = true;              ///< as in RenderedRecord
  bool duplicate_bos = false;     ///< the text began with BOS itself
  bool hidden_parts = false;      ///< as in RenderedRecord
  bool empty_answer = false;      ///< as in RenderedRecord
  bool trained_question = false;  ///< as in RenderedRecord
  std::vector<EncodedRecord> others;
  bool prompt_cut = false;         ///< the end of the prompt is no part of prompt and answer encoded together
  std::vector<float> values = {};  ///< as in RenderedRecord
};
EncodedRecord encode_record(RenderedRecord record, const Encoder& encoder);

}  // namespace nibble
