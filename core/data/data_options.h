#pragma once
// What the `data` section of a recipe says; each member is the recipe key of the same name.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble {

/// How a record is read. What each one takes is said at render_record() in format.h.
enum class DataFormat : uint8_t {
  automatic,
  alpaca,
  chat,
  completion,
  text,
  tokens,
  preference,
  unpaired,
  labeled,
  prompts,
  rollouts,
};

/// "auto", "alpaca", ...; parse throws UsageError for another name, naming the nearest.
std::string_view data_format_name(DataFormat format);
/// All of them by name.
std::vector<std::pair<std::string, DataFormat>> data_formats();
DataFormat parse_data_format(std::string_view name);

/// What happens to a sample longer than max_length. Text is never cut: it goes on in the next sequence.
enum class Truncate : uint8_t {
  error,  ///< refuse the data set, with counts
  cut,    ///< keep the first max_length tokens, count it
  drop,   ///< leave the sample out, count it
};
Truncate parse_truncate(std::string_view name);

/// What happens to tool calls, reasoning, tool results and tool lists that the chat template does not show.
enum class HiddenParts : uint8_t {
  error,  ///< refuse the record
  drop,   ///< train without them, count the record
};

inline constexpr double kLargestWeight = 1000;

/// What is taken of a directory with splits.
enum class DataSplit : uint8_t {
  train,
  eval,  ///< validation, else test
};

/// A file, a directory (its data files in the order of their names, of one split), a glob pattern, or an ID in the
/// Hugging Face cache.
struct DataSource {
  std::string path;
  /// How often an epoch takes each sample: 2 = twice, 0.5 = a keyed half of them, another one each epoch. Above 0, at
  /// most kLargestWeight.
  double weight = 1.0;
};

struct DataOptions {
  std::vector<DataSource> train;
  std::vector<DataSource> eval;
  double eval_fraction = 0.0;                 ///< [0, 1): share of `train` held out by a keyed draw; excludes `eval`
  DataFormat format = DataFormat::automatic;  ///< automatic: by the first record of each file
  std::string chat_template;                  ///< `data.template`; empty = the model's own, for chat only
  std::map<std::string, std::string> fields;  ///< our field name -> the file's ("prompt" -> "question")
  int64_t max_length = 2048;                  ///< tokens of a sequence, at least 2
  bool pack = true;                           ///< several documents in one sequence, blind to each other
  bool shuffle = true;                        ///< false: the order of the files
  bool train_on_prompt = false;               ///< loss on the prompt's tokens too
  Truncate truncate = Truncate::error;
  /// Directory that keeps what was encoded, for other runs; the tokens are mapped from there. Empty: in memory.
  std::string cache;
  int64_t skip_bad = 0;  ///< malformed records that may be left out (counted); 0 = stop at the first
  HiddenParts hidden_parts = HiddenParts::error;
  bool needs_reward = true;  ///< format rollouts: whether a line without one is malformed
  double max_dropped = 0.5;  ///< share of the records that may be dropped (too long, nothing trained), have an
                             ///< empty answer, or the same as chosen and as rejected
};

/// Throws UsageError, naming the recipe key, for a value out of range.
void check_data_options(const DataOptions& options);

}  // namespace nibble
