#pragma once
// A tokenized data set, 4 bytes a token and 24 a sample, in memory or (data.cache) in mapped files; the parts that
// split() makes share its tokens.

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nibble/core/data/data_options.h"
#include "nibble/core/data/encoder.h"
#include "nibble/core/data/large_array.h"
#include "nibble/core/models/batch.h"

namespace nibble {

/// A file as it was read.
struct DataFileFacts {
  std::string path;
  int64_t records = 0;
  uint64_t bytes = 0;
  uint64_t hash = 0;  ///< XXH3, 64 bits, of the whole file
  DataFormat format = DataFormat::automatic;
};

/// What loading found; every record is accounted for: records = those with samples (one, or a group) + the dropped ones
/// + bad_records.
struct DatasetReport {
  int64_t records = 0;
  int64_t samples = 0;
  int64_t tokens = 0;             ///< of the samples
  int64_t trained_tokens = 0;     ///< tokens that are predicted and count in the loss
  int64_t bad_records = 0;        ///< malformed, left out by skip_bad
  int64_t dropped_untrained = 0;  ///< no token to train (after cutting)
  int64_t dropped_long = 0;       ///< longer than max_length with truncate = drop
  int64_t truncated = 0;          ///< cut to max_length
  int64_t truncated_tokens = 0;   ///< tokens lost by it
  int64_t hidden_parts = 0;       ///< records trained without parts that the text does not show
  int64_t empty_answers = 0;      ///< records that train the end of an empty answer or text, and nothing else
  int64_t duplicate_bos = 0;      ///< texts that brought a BOS of their own
  int64_t cut_answers = 0;        ///< samples of preferences whose answer lost its end
  int64_t cut_prompts = 0;        ///< records whose prompt alone is encoded otherwise than before its answer
  int64_t trained_questions = 0;  ///< records with an answer that begins with what was asked
  int64_t pairs = 0;              ///< of a chosen and a rejected answer
  int64_t identical_pairs = 0;    ///< whose answers are the same, and not empty
  int64_t longer_chosen = 0;      ///< whose chosen answer is the longer one
  int64_t chosen_tokens = 0, rejected_tokens = 0;  ///< of their answers
  int64_t verdicts = 0, good_verdicts = 0;         ///< of unpaired answers
  int64_t longest = 0;                             ///< tokens of the longest kept sample before cutting
  /// Kept samples by tokens before cutting: [i] counts lengths in [2^i, 2^(i+1)).
  std::array<int64_t, 32> lengths{};
  std::vector<DataFileFacts> files;
  std::string first_bad;              ///< message of the first malformed record left out
  std::vector<std::string> warnings;  ///< lines for the user

  /// Records that are dropped, or train nothing but an end, or teach nothing.
  int64_t lost() const { return dropped_untrained + dropped_long + empty_answers + identical_pairs; }
  /// Whether their share of the records that are not malformed is above `share` (data.max_dropped).
  bool exceeds(double share) const {
    return static_cast<double>(lost()) > share * static_cast<double>(records - bad_records);
  }
  /// trained_tokens / tokens, 0 without tokens.
  double trained_share() const;
};

/// One sample of a Dataset.
struct SampleInfo {
  const int32_t* codes = nullptr;  ///< token id, or ~id where it is not trained
  uint32_t length = 0;             ///< tokens
  uint32_t trained = 0;            ///< tokens after the first that are trained
  uint32_t record = 0;             ///< number in the data set, from 0
  uint16_t source = 0;             ///< which DataSource
  bool whole = true;               ///< false: text that packing may cut
  uint32_t values = 0;             ///< numbers behind the codes, see SampleRow
};

/// How a sample lies in the table of a Dataset.
struct SampleRow {
  static constexpr ptrdiff_t kMostValues = 0x7FFF;
  uint64_t first = 0;  ///< its first code among all
  uint32_t length = 0, trained = 0, record = 0;
  uint16_t source = 0;
  uint16_t whole : 1 = 1;
  uint16_t values : 15 = 0;  ///< of Sample::values: f32, as codes behind those of the tokens
};
static_assert(sizeof(SampleRow) == 24);  // the form of samples.bin (encoded_cache.h)

/// A sample for people.
struct SamplePreview {
  uint32_t record = 0;
  size_t answer = 0;          ///< the first token that has a label, or their number
  std::vector<float> values;  ///< Sample::values
  std::vector<int32_t> ids;
  std::vector<std::string> texts;  ///< of each token
  std::vector<bool> trained;       ///< whether the token is predicted and counts in the loss
};

class Dataset {
 public:
  /// Reads, renders and encodes all records of `sources`, in parallel, in the order of the files. Throws InputError
  /// for bad input (see record_reader.h, format.h), for samples that are too long under truncate = error (with
  /// counts), and for a data set without a sample to train on. With options.cache tokens and samples lie in files
  /// there, and what an earlier run made of the same is taken instead (encoded_cache.h): own memory stays flat.
  /// split: of directories that have several (find_data_files).
  static Dataset load(const std::vector<DataSource>& sources, const DataOptions& options, const Encoder& encoder,
                      DataSplit split = DataSplit::train);

  /// Splits off round(fraction * size) samples, at least 1, drawn by (seed): {train, eval}; both keep the files' order.
  /// Text documents longer than max_length are cut first, so that a single document can be split too. 0 < fraction < 1.
  std::pair<Dataset, Dataset> split(double fraction, uint64_t seed, int64_t max_length) const;

  int64_t size() const { return static_cast<int64_t>(rows_count_); }
  SampleInfo info(int64_t i) const {
    const SampleRow& row = rows_[checked(i)];
    return {codes_ + row.first, row.length, row.trained, row.record, row.source, row.whole != 0, row.values};
  }
  /// Calls `use` with each number and sample, in order. The samples of a source stand together, in the sources' order.
  void for_each(const std::function<void(int64_t, const SampleInfo&)>& use) const;
  /// Whether there are samples that packing may cut; tokens of the longest of the others.
  bool has_text() const { return has_text_; }
  uint32_t longest_whole() const { return longest_whole_; }
  /// Whether sample i belongs to the group of the one before: both are of one record, which holds what a loss compares.
  bool continues_group(int64_t i) const { return i > 0 && continues(rows_[checked(i) - 1], rows_[checked(i)]); }
  bool has_groups() const { return has_groups_; }
  /// The directory for what grows with the number of samples; empty: memory. It is data.cache where that can be
  /// written.
  const std::filesystem::path& scratch() const { return scratch_; }
  /// By DataSource; all 1 after nothing else was asked.
  const std::vector<double>& weights() const { return weights_; }

  /// Tokens [begin, end) of sample i with their labels, under `index`.
  Sample sample(int64_t i, uint32_t begin, uint32_t end, uint64_t index) const;
  Sample sample(int64_t i) const;
  /// Tokens of sample i that are predicted and count in the loss when [begin, end) is a document of its own.
  int64_t trained(int64_t i, uint32_t begin, uint32_t end) const;
  SamplePreview preview(int64_t i, const Encoder& encoder) const;
  /// Where the record of sample i stands (record_place), for messages: its file is read again up to there.
  std::string place(int64_t i) const;

  /// Files and records are of the loaded sources, samples and tokens of this part.
  const DatasetReport& report() const { return report_; }

  /// 16 hex digits over the samples' tokens and masks, their order and weights: differs when a run resumed with the
  /// same settings would see other batches. report().files says which file changed.
  const std::string& fingerprint() const { return fingerprint_; }

 private:
  friend class DatasetBuilder;
  friend class DatasetSummary;
  friend class EncodedCache;
  std::shared_ptr<const void> codes_owner_, rows_owner_;
  const int32_t* codes_ = nullptr;
  const SampleRow* rows_ = nullptr;
  size_t rows_count_ = 0;
  std::vector<double> weights_;
  DatasetReport report_;
  std::string fingerprint_;
  bool has_text_ = false, has_groups_ = false;
  uint32_t longest_whole_ = 0;
  bool codes_mapped_ = false, rows_mapped_ = false;  // from files: their pages can be given back
  std::filesystem::path scratch_;

  static bool continues(const SampleRow& before, const SampleRow& row) {
    return row.whole != 0 && before.whole != 0 && row.record == before.record && row.source == before.source;
  }
  size_t checked(int64_t i) const;
  void take_rows(LargeArray<SampleRow> rows);
};

/// What follows from the samples of a data set, seen one after the other: counts of the report, and the fingerprint.
class DatasetSummary {
 public:
  DatasetSummary();
  ~DatasetSummary();
  /// `codes`: those of the sample; without them it does not count in the fingerprint.
  void add(const SampleRow& row, const int32_t* codes);
  /// Sets what it saw in `dataset`, whose weights are there; with a fingerprint where codes were seen.
  void put(Dataset& dataset);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nibble
