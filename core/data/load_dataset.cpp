#include <algorithm>
#include <bit>
#include <optional>
#include <set>

#include "nibble/core/base/error.h"
#include "nibble/core/base/parallel.h"
#include "nibble/core/data/dataset.h"
#include "nibble/core/data/encoded_cache.h"
#include "nibble/core/data/records/format.h"
#include "nibble/core/data/records/record_reader.h"
#include "nibble/core/formatting/readable.h"

namespace nibble {

namespace {

// Records that are read before all threads encode them: enough to keep them busy, little enough to hold.
constexpr size_t kChunkRecords = 2048;
constexpr size_t kChunkBytes = size_t{4} << 20;

// A record that was encoded, or why it could not be.
struct Outcome {
  EncodedRecord encoded;
  std::optional<InputError> failure;
};

// The first token is never predicted.
uint32_t trained_tokens(const EncodedRecord& sample) {
  return static_cast<uint32_t>(std::count_if(sample.labels.begin() + (sample.labels.empty() ? 0 : 1),
                                             sample.labels.end(), [](int32_t label) { return label != kIgnoreLabel; }));
}

// A data set of which next to nothing is left, or is worth anything, was meant to be read otherwise.
void check_dropped(const DatasetReport& counts, const DataOptions& options) {
  const int64_t empty = counts.empty_answers, equal = counts.identical_pairs;
  const int64_t lost = counts.lost(), of = counts.records - counts.bad_records;
  if (!counts.exceeds(options.max_dropped)) return;
  throw InputError(counts.files.front().path,
                   grouped_text(lost) + " of " + count_text(of, "record") + (lost == 1 ? " is" : " are") + " dropped" +
                       (empty > 0 ? " or empty" : "") + (equal > 0 ? " or equal" : "") + " (" +
                       (empty > 0 ? grouped_text(empty) + " train the end alone of an empty answer or text, " : "") +
                       (equal > 0 ? grouped_text(equal) + " with the same answer as chosen and as rejected, " : "") +
                       grouped_text(counts.dropped_untrained) + " without a trained token, " +
                       grouped_text(counts.dropped_long) + " too long), a larger share than data.max_dropped (" +
                       formatted("%g", options.max_dropped) + ")",
                   (empty > 0 || equal > 0 ? "check data.fields, " : "check ") +
                       std::string("data.format, data.template and data.max_length with nibble preview, or raise "
                                   "data.max_dropped"));
}

// What looks wrong with data that say which answers are better.
void warn_of_preferences(DatasetReport& counts) {
  const auto warn = [&](int64_t count, const std::string& one, const std::string& many, const std::string& what) {
    if (count > 0) counts.warnings.push_back(count_text(count, one, many) + " " + what);
  };
  warn(counts.identical_pairs, "pair has", "pairs have",
       "the same answer as chosen and as rejected: they teach nothing");
  warn(counts.trained_questions, "record has", "records have",
       "an answer that begins with what was asked, which is trained with it: give the prompt once, as \"prompt\" or "
       "in front of both answers alike");
  warn(counts.cut_answers, "answer loses its", "answers lose their",
       "end to data.max_length, and with it the sign to stop");
  warn(counts.cut_prompts, "prompt is", "prompts are",
       "encoded otherwise when an answer follows: the end of such a prompt is left out, and the model sees "
       "another one when it is used (end prompts where a token ends, or use a template that writes both alike)");
  if (counts.verdicts > 0 && (counts.good_verdicts == 0 || counts.good_verdicts == counts.verdicts)) {
    counts.warnings.push_back(std::string("all answers are labelled as ") +
                              (counts.good_verdicts == 0 ? "bad" : "good") + ": nothing tells good from bad");
  }
  constexpr double kBias = 1.25;  // mean lengths that differ by a quarter
  constexpr int64_t kFew = 20;
  const auto chosen = static_cast<double>(counts.chosen_tokens), rejected = static_cast<double>(counts.rejected_tokens);
  if (counts.pairs < kFew || std::max(chosen, rejected) < kBias * std::min(chosen, rejected)) return;
  counts.warnings.push_back(
      formatted("chosen answers have %.0f tokens on average, rejected ones %.0f: a model may learn the length alone; "
                "losses that average over tokens (simpo, ipo, sigmoid_norm) or ld_alpha resist it",
                chosen / static_cast<double>(counts.pairs), rejected / static_cast<double>(counts.pairs)));
}

}  // namespace

class DatasetBuilder {
 public:
  /// cache: where the tokens go; null: memory.
  DatasetBuilder(const std::vector<DataSource>& sources, const DataOptions& options, const Encoder& encoder,
                 EncodedCache* cache)
      : options_(options), encoder_(encoder), cache_(cache) {
    for (const DataSource& source : sources) dataset_.weights_.push_back(source.weight);
  }

  void add_file(const DataFile& file, bool more_files);
  Dataset finish();

 private:
  DatasetReport& report() { return dataset_.report_; }
  DataFormat find_format(const RecordReader& reader, const std::vector<RawRecord>& chunk) const;
  std::vector<Outcome> encode(const RecordReader& reader, std::vector<RawRecord>& chunk, DataFormat format) const;
  void check_ids(const std::string& place, const EncodedRecord& encoded) const;
  void add(const std::string& place, Outcome outcome, uint32_t source);
  void count_bad(const InputError& failure);
  bool fits(const std::string& place, EncodedRecord& encoded);
  void count_preferences(const std::vector<EncodedRecord>& samples);
  uint32_t count_trained(const EncodedRecord& sample) const;
  void store(const EncodedRecord& encoded, uint32_t source);

  const DataOptions& options_;
  const Encoder& encoder_;
  EncodedCache* cache_;
  Dataset dataset_;
  DatasetSummary summary_;
  LargeArray<int32_t> codes_{{}};  // without a cache
  LargeArray<SampleRow> rows_{{}};
  DataFormat format_ = DataFormat::automatic;  // of the file
  std::set<std::string> fields_used_;
  int64_t too_long_ = 0, longest_too_long_ = 0;
  std::string first_too_long_;  // place and length
};

DataFormat DatasetBuilder::find_format(const RecordReader& reader, const std::vector<RawRecord>& chunk) const {
  if (reader.is_text()) {
    constexpr DataFormat kOfRecords[] = {DataFormat::preference, DataFormat::unpaired, DataFormat::labeled,
                                         DataFormat::prompts, DataFormat::rollouts};
    if (std::ranges::count(kOfRecords, options_.format) == 0) return DataFormat::text;
    throw InputError(reader.path(), "is a document, not a list of records",
                     "give records of the format " + std::string(data_format_name(options_.format)) + ", as .jsonl");
  }
  if (options_.format != DataFormat::automatic) return options_.format;
  std::optional<InputError> first;
  for (const RawRecord& record : chunk) {
    try {
      return detect_format(reader.path(), record, options_);
    } catch (const InputError& failure) {
      if (options_.skip_bad == 0) throw;
      if (!first) first = failure;
    }
  }
  throw *first;
}

void DatasetBuilder::check_ids(const std::string& place, const EncodedRecord& encoded) const {
  for (const EncodedRecord& other : encoded.others) check_ids(place, other);
  for (const int32_t id : encoded.ids) {
    if (id < 0 || id >= encoder_.vocab_size) {
      throw InputError(place,
                       "gives token " + std::to_string(id) + ", outside the vocabulary of " +
                           std::to_string(encoder_.vocab_size) + " tokens",
                       "use the model's own tokenizer");
    }
  }
}

std::vector<Outcome> DatasetBuilder::encode(const RecordReader& reader, std::vector<RawRecord>& chunk,
                                            DataFormat format) const {
  std::vector<Outcome> outcomes(chunk.size());
  parallel_for(static_cast<int64_t>(chunk.size()), 8, [&](int64_t begin, int64_t end) {
    for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      try {
        RenderedRecord rendered = reader.is_text() ? render_document(std::move(chunk[i].text))
                                                   : render_record(reader.path(), chunk[i], format, options_, encoder_);
        std::string().swap(chunk[i].text);
        outcomes[i].encoded = encode_record(std::move(rendered), encoder_);
        check_ids(record_place(reader.path(), chunk[i]), outcomes[i].encoded);
      } catch (const InputError& failure) {
        outcomes[i].failure = failure;  // reported later in the order of the file, whichever thread met it first
      }
    }
  });
  return outcomes;
}

void DatasetBuilder::add_file(const DataFile& file, bool more_files) {
  RecordReader reader(file.path);
  DataFileFacts facts{file.path, 0, 0, 0, options_.format};
  std::vector<RawRecord> chunk;
  size_t bytes = 0;
  const auto flush = [&] {
    if (chunk.empty()) return;
    if (facts.records == 0) {
      facts.format = find_format(reader, chunk);
      if (!reader.is_text()) {
        check_fields(reader.path(), chunk, facts.format, options_, encoder_, more_files, fields_used_);
      }
    }
    format_ = facts.format;
    std::vector<Outcome> outcomes = encode(reader, chunk, facts.format);
    for (size_t i = 0; i < chunk.size(); ++i) {
      add(record_place(file.path, chunk[i]), std::move(outcomes[i]), file.source);
    }
    facts.records += static_cast<int64_t>(chunk.size());
    chunk.clear();
    bytes = 0;
  };
  for (RawRecord record; reader.next(record);) {
    bytes += record.text.size();
    chunk.push_back(std::move(record));
    if (chunk.size() >= kChunkRecords || bytes >= kChunkBytes) flush();
  }
  flush();
  facts.bytes = reader.bytes();
  facts.hash = reader.hash();
  report().files.push_back(std::move(facts));
}

void DatasetBuilder::count_bad(const InputError& failure) {
  if (options_.skip_bad == 0) throw failure;
  if (report().bad_records == 0) report().first_bad = failure.what();
  if (++report().bad_records > options_.skip_bad) {
    throw InputError("data.skip_bad", "more than " + count_text(options_.skip_bad, "record is", "records are") +
                                          " bad, the first: " + report().first_bad);
  }
}

void DatasetBuilder::add(const std::string& place, Outcome outcome, uint32_t source) {
  DatasetReport& counts = report();
  ++counts.records;
  if (outcome.failure) return count_bad(*outcome.failure);
  std::vector<EncodedRecord> samples = std::move(outcome.encoded.others);
  samples.insert(samples.begin(), std::move(outcome.encoded));
  std::vector<size_t> lengths;  // before cutting
  for (const EncodedRecord& sample : samples) lengths.push_back(sample.ids.size());
  // A group of which one is dropped is no group any more.
  if (!std::ranges::all_of(samples, [&](EncodedRecord& sample) { return fits(place, sample); })) {
    ++counts.dropped_long;
    return;
  }
  if (!std::ranges::all_of(samples, [&](const EncodedRecord& sample) { return count_trained(sample) > 0; })) {
    ++counts.dropped_untrained;
    return;
  }
  for (const size_t length : lengths) {
    counts.longest = std::max(counts.longest, static_cast<int64_t>(length));
    if (length > 0) ++counts.lengths[std::min<size_t>(31, std::bit_width(length) - 1)];
  }
  counts.empty_answers += samples.front().empty_answer;
  count_preferences(samples);
  for (const EncodedRecord& sample : samples) store(sample, source);
}

// Samples that are kept, as they are after cutting.
void DatasetBuilder::count_preferences(const std::vector<EncodedRecord>& samples) {
  DatasetReport& counts = report();
  const DataFormat format = format_;
  if (format != DataFormat::preference && format != DataFormat::unpaired) return;
  counts.cut_prompts += samples.front().prompt_cut;
  counts.trained_questions += samples.front().trained_question;
  if (format == DataFormat::unpaired) {
    ++counts.verdicts;
    counts.good_verdicts += samples.front().values.front() != 0;
    return;
  }
  const int64_t chosen = trained_tokens(samples[0]), rejected = trained_tokens(samples[1]);
  ++counts.pairs;
  counts.identical_pairs += samples[0].ids == samples[1].ids && !samples[0].empty_answer;  // counted as that
  counts.longer_chosen += chosen > rejected;
  counts.chosen_tokens += chosen;
  counts.rejected_tokens += rejected;
}

// What max_length takes from an answer, behind its verdict: behind a shorter prompt (KTO's KL) it may have room.
void keep_end(EncodedRecord& encoded, int64_t max_length) {
  const auto begin = encoded.ids.begin() + max_length;
  const auto count = std::min<ptrdiff_t>({encoded.ids.end() - begin, max_length, SampleRow::kMostValues - 1});
  encoded.values.insert(encoded.values.end(), begin, begin + count);
}

// Counts a sample and cuts it to max_length; false: it is to be dropped.
bool DatasetBuilder::fits(const std::string& place, EncodedRecord& encoded) {
  DatasetReport& counts = report();
  const auto length = static_cast<int64_t>(encoded.ids.size());
  counts.hidden_parts += encoded.hidden_parts;
  counts.duplicate_bos += encoded.duplicate_bos;
  if (!encoded.whole || length <= options_.max_length) return true;
  if (options_.truncate == Truncate::drop) return false;
  if (too_long_++ == 0) first_too_long_ = place;
  longest_too_long_ = std::max(longest_too_long_, length);
  ++counts.truncated;
  counts.truncated_tokens += length - options_.max_length;
  counts.cut_answers += format_ == DataFormat::preference || format_ == DataFormat::unpaired;
  if (format_ == DataFormat::unpaired) keep_end(encoded, options_.max_length);
  encoded.ids.resize(static_cast<size_t>(options_.max_length));
  encoded.labels.resize(static_cast<size_t>(options_.max_length));
  return true;
}

uint32_t DatasetBuilder::count_trained(const EncodedRecord& sample) const {
  const bool answered_later = format_ == DataFormat::prompts;
  const bool scored = format_ == DataFormat::labeled && !sample.ids.empty();  // its last token
  return answered_later ? 1 : std::max(trained_tokens(sample), uint32_t{scored});
}

void DatasetBuilder::store(const EncodedRecord& encoded, uint32_t source) {
  SampleRow row;
  row.length = static_cast<uint32_t>(encoded.ids.size());
  row.source = static_cast<uint16_t>(source);
  row.whole = encoded.whole;
  row.record = static_cast<uint32_t>(report().records - 1);
  row.trained = count_trained(encoded);
  row.values = static_cast<uint16_t>(encoded.values.size()) & SampleRow::kMostValues;
  std::vector<int32_t> codes(encoded.ids.size());
  for (size_t t = 0; t < codes.size(); ++t) {
    codes[t] = encoded.labels[t] == kIgnoreLabel ? ~encoded.ids[t] : encoded.ids[t];
  }
  for (const float value : encoded.values) codes.push_back(std::bit_cast<int32_t>(value));
  summary_.add(row, codes.data());
  if (cache_) return cache_->add(row, codes);
  row.first = codes_.size();
  codes_.append(codes);
  rows_.push_back(row);
}

Dataset DatasetBuilder::finish() {
  DatasetReport& counts = report();
  if (too_long_ > 0 && options_.truncate == Truncate::error) {
    const std::string limit = format_ == DataFormat::prompts  // which is lower by the answers'
                                  ? "is longer than data.max_length less rollout.max_new_tokens ("
                                  : "is longer than data.max_length (";
    throw InputError(first_too_long_,
                     limit + std::to_string(options_.max_length) +
                         (too_long_ == 1 ? " tokens), as is " : " tokens), as are ") + grouped_text(too_long_) +
                         " of " + count_text(counts.records, "record") + "; the longest has " +
                         grouped_text(longest_too_long_),
                     format_ == DataFormat::rollouts  ? "raise data.max_length"
                     : format_ == DataFormat::prompts ? "raise data.max_length, or set data.truncate to drop"
                                                      : "raise data.max_length, or set data.truncate to cut or drop");
  }
  summary_.put(dataset_);
  if (counts.samples == 0) {
    std::string reason = counts.records == 0 ? "holds no record"
                                             : "has no sample to train on: of " + count_text(counts.records, "record") +
                                                   " " + grouped_text(counts.dropped_untrained) +
                                                   " without a trained token, " + grouped_text(counts.dropped_long) +
                                                   " too long, " + grouped_text(counts.bad_records) + " bad";
    throw InputError(counts.files.front().path, reason, "check data.format, data.max_length and the file");
  }
  if (counts.duplicate_bos > 0) {
    counts.warnings.push_back(count_text(counts.duplicate_bos, "text begins", "texts begin") +
                              " with a BOS already; the tokenizer's was not added");
  }
  warn_of_preferences(counts);
  if (counts.hidden_parts > 0) {
    counts.warnings.push_back(count_text(counts.hidden_parts, "record is", "records are") +
                              " trained without messages, tool calls, reasoning, tools, documents or system "
                              "prompts that the text does not show");
  }
  if (counts.empty_answers > 0) {
    counts.warnings.push_back(grouped_text(counts.empty_answers) + " of " + count_text(counts.records, "record") +
                              (counts.empty_answers == 1 ? " has" : " have") +
                              " an empty answer or text: nothing but its end is trained");
  }
  if (counts.bad_records > 0) {
    counts.warnings.push_back(count_text(counts.bad_records, "bad record was", "bad records were") +
                              " left out, the first: " + counts.first_bad);
  }
  if (cache_) {
    cache_->publish(dataset_);
  } else {
    const auto codes = std::make_shared<const LargeArray<int32_t>>(std::move(codes_));
    dataset_.codes_ = codes->data();
    dataset_.codes_owner_ = codes;
    dataset_.take_rows(std::move(rows_));
  }
  return std::move(dataset_);
}

Dataset Dataset::load(const std::vector<DataSource>& sources, const DataOptions& options, const Encoder& encoder,
                      DataSplit split) {
  const std::vector<DataFile> files = find_data_files(sources, split);
  if (files.empty()) throw UsageError("no data", "name a file, directory or glob", "data.train");
  if (sources.size() > UINT16_MAX) throw UsageError("more than 65535 sources", "use a directory or glob", "data.train");
  std::optional<EncodedCache> cache;
  if (!options.cache.empty() && !encoder.fingerprint.empty()) {
    cache.emplace(sources, files, options, encoder);
    if (std::optional<Dataset> found = cache->find()) {
      check_dropped(found->report(), options);
      return std::move(*found);
    }
  }
  DatasetBuilder builder(sources, options, encoder, cache ? &*cache : nullptr);
  for (const DataFile& file : files) builder.add_file(file, &file != &files.back());
  Dataset dataset = builder.finish();
  check_dropped(dataset.report(), options);
  return dataset;
}

}  // namespace nibble
