#include "nibble/core/data/encoded_cache.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/base/version.h"
#include "nibble/core/data/large_array.h"
#include "nibble/core/io/files/atomic_file.h"
#include "nibble/core/io/files/temporary_name.h"
#include "nibble/core/io/hash.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/tensor/storage.h"

namespace nibble {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kTokens = "tokens.bin";
constexpr const char* kSamples = "samples.bin";
constexpr const char* kFacts = "data.json";
constexpr size_t kPiece = size_t{16} << 20;

constexpr std::pair<const char*, int64_t DatasetReport::*> kCounts[] = {
    {"records", &DatasetReport::records},
    {"samples", &DatasetReport::samples},
    {"tokens", &DatasetReport::tokens},
    {"trained_tokens", &DatasetReport::trained_tokens},
    {"bad_records", &DatasetReport::bad_records},
    {"dropped_untrained", &DatasetReport::dropped_untrained},
    {"dropped_long", &DatasetReport::dropped_long},
    {"truncated", &DatasetReport::truncated},
    {"truncated_tokens", &DatasetReport::truncated_tokens},
    {"duplicate_bos", &DatasetReport::duplicate_bos},
    {"hidden_parts", &DatasetReport::hidden_parts},
    {"empty_answers", &DatasetReport::empty_answers},
    {"cut_answers", &DatasetReport::cut_answers},
    {"cut_prompts", &DatasetReport::cut_prompts},
    {"trained_questions", &DatasetReport::trained_questions},
    {"pairs", &DatasetReport::pairs},
    {"identical_pairs", &DatasetReport::identical_pairs},
    {"longer_chosen", &DatasetReport::longer_chosen},
    {"chosen_tokens", &DatasetReport::chosen_tokens},
    {"rejected_tokens", &DatasetReport::rejected_tokens},
    {"verdicts", &DatasetReport::verdicts},
    {"good_verdicts", &DatasetReport::good_verdicts},
    {"longest", &DatasetReport::longest}};

std::string key_of(const std::vector<DataSource>& sources, const std::vector<DataFile>& files,
                   const DataOptions& options, const Encoder& encoder) {
  constexpr int kRendering = 5;  // one more wherever a record becomes other tokens, or counts otherwise, than before
  json output = {{"nibble", std::string(version())},
                 {"rendering", kRendering},
                 {"encoder", encoder.fingerprint},
                 {"vocab_size", encoder.vocab_size},
                 {"prefix", encoder.prefix},
                 {"eos", encoder.eos ? json(*encoder.eos) : json()},
                 {"format", static_cast<int>(options.format)},
                 {"fields", options.fields},
                 {"max_length", options.max_length},
                 {"train_on_prompt", options.train_on_prompt},
                 {"truncate", static_cast<int>(options.truncate)},
                 {"skip_bad", options.skip_bad},
                 {"hidden_parts", static_cast<int>(options.hidden_parts)}};
  for (const DataSource& source : sources) output["weights"].push_back(source.weight);
  for (const DataFile& file : files)
    output["files"].push_back({hash_file(file.path), data_type(file.path), file.source});
  const std::string text = output.dump();
  return hash_bytes(std::as_bytes(std::span(text)));
}

// The hash of mapped bytes, of which none stay in memory.
std::string hash_of(const FileMap& map) {
  Hasher hasher;
  for (size_t begin = 0; begin < map.size(); begin += kPiece) {
    const size_t count = std::min(kPiece, map.size() - begin);
    hasher.update({map.data() + begin, count});
    release_pages({map.data() + begin, count});
  }
  return hasher.hex();
}

json describe(const DatasetReport& report) {
  json output = {{"lengths", report.lengths}, {"first_bad", report.first_bad}, {"warnings", report.warnings}};
  for (const auto& [name, member] : kCounts) output[name] = report.*member;
  for (const DataFileFacts& file : report.files)
    output["files"].push_back({file.records, file.bytes, file.hash, static_cast<int>(file.format)});
  return output;
}

DatasetReport read_report(const json& output, const std::vector<DataFile>& files) {
  DatasetReport report;
  for (const auto& [name, member] : kCounts) report.*member = output.at(name).get<int64_t>();
  output.at("lengths").get_to(report.lengths);
  output.at("first_bad").get_to(report.first_bad);
  output.at("warnings").get_to(report.warnings);
  for (size_t i = 0; i < files.size(); ++i) {
    const json& file = output.at("files").at(i);
    report.files.push_back({files[i].path, file.at(0).get<int64_t>(), file.at(1).get<uint64_t>(),
                            file.at(2).get<uint64_t>(), static_cast<DataFormat>(file.at(3).get<int>())});
  }
  return report;
}

// The rows fit the tokens and one another; what follows from them goes into `dataset`.
bool look_through(const FileMap& table, uint64_t codes, Dataset& dataset) {
  DatasetSummary summary;
  const auto* rows = reinterpret_cast<const SampleRow*>(table.data());
  const size_t count = table.size() / sizeof(SampleRow), piece = kPiece / sizeof(SampleRow);
  uint64_t end = 0;
  uint16_t source = 0;
  for (size_t i = 0; i < count; ++i) {
    const SampleRow& row = rows[i];
    if (row.first < end || row.first > codes || row.length == 0 ||
        uint64_t{row.length} + row.values > codes - row.first || row.source < source ||
        row.source >= dataset.weights().size()) {
      return false;
    }
    end = row.first + row.length + row.values;
    source = row.source;
    summary.add(row, nullptr);
    if (i % piece == piece - 1) release_pages(std::as_bytes(std::span(rows + i + 1 - piece, piece)));
  }
  summary.put(dataset);
  return count > 0;
}

}  // namespace

// Codes and rows go out in pieces, and are hashed on their way.
struct EncodedCache::Writer {
  explicit Writer(const fs::path& target)
      : directory(target, Replace::anything), tokens(directory.path() / kTokens), table(directory.path() / kSamples) {}

  AtomicDirectory directory;
  AtomicFile tokens, table;
  Hasher tokens_hash, table_hash;
  std::vector<int32_t> codes;
  std::vector<SampleRow> rows;
  uint64_t codes_before = 0;  // in the file

  void flush() {
    tokens.write(std::as_bytes(std::span(codes)));
    tokens_hash.update(std::as_bytes(std::span(codes)));
    table.write(std::as_bytes(std::span(rows)));
    table_hash.update(std::as_bytes(std::span(rows)));
    codes_before += codes.size();
    codes.clear();
    rows.clear();
  }
};

EncodedCache::EncodedCache(const std::vector<DataSource>& sources, const std::vector<DataFile>& files,
                           const DataOptions& options, const Encoder& encoder)
    : files_(files), cache_(options.cache), target_(cache_ / key_of(sources, files, options, encoder)) {}

EncodedCache::~EncodedCache() = default;

void EncodedCache::map_into(Dataset& dataset, const fs::path& from) const {
  const auto tokens = std::make_shared<const FileMap>((from / kTokens).string());
  const auto table = std::make_shared<const FileMap>((from / kSamples).string());
  dataset.codes_ = reinterpret_cast<const int32_t*>(tokens->data());
  dataset.rows_ = reinterpret_cast<const SampleRow*>(table->data());
  dataset.rows_count_ = table->size() / sizeof(SampleRow);
  dataset.codes_owner_ = tokens;
  dataset.rows_owner_ = table;
  dataset.codes_mapped_ = dataset.rows_mapped_ = true;
  // A directory that others made and that cannot be written is used as it is.
  dataset.scratch_ = access(cache_.c_str(), W_OK) == 0 ? cache_ : fs::path();
}

std::optional<Dataset> EncodedCache::find() const {
  if (!fs::exists(target_ / kFacts)) return std::nullopt;
  try {
    const json facts = read_json_file(target_ / kFacts);
    Dataset result;
    facts.at("weights").get_to(result.weights_);
    facts.at("fingerprint").get_to(result.fingerprint_);
    result.report_ = read_report(facts.at("report"), files_);
    map_into(result, target_);
    const auto& tokens = *static_cast<const FileMap*>(result.codes_owner_.get());
    const auto& table = *static_cast<const FileMap*>(result.rows_owner_.get());
    if (hash_of(tokens) != facts.at("tokens") || hash_of(table) != facts.at("samples")) return std::nullopt;
    if (!look_through(table, tokens.size() / sizeof(int32_t), result)) return std::nullopt;
    return result;
  } catch (const Error&) {  // what cannot be read is made again
    return std::nullopt;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

void EncodedCache::add(SampleRow row, std::span<const int32_t> codes) {
  constexpr size_t kHeld = size_t{1} << 20;  // codes
  if (!writer_) {
    sweep_leftovers(cache_, target_.filename().string());
    writer_ = std::make_unique<Writer>(target_);
  }
  row.first = writer_->codes_before + writer_->codes.size();
  writer_->codes.insert(writer_->codes.end(), codes.begin(), codes.end());
  writer_->rows.push_back(row);
  if (writer_->codes.size() >= kHeld) writer_->flush();
}

void EncodedCache::publish(Dataset& dataset) {
  NIBBLE_CHECK(writer_, "a cache that is being written");
  writer_->flush();
  writer_->tokens.commit();
  writer_->table.commit();
  const json facts = {{"tokens", writer_->tokens_hash.hex()},
                      {"samples", writer_->table_hash.hex()},
                      {"weights", dataset.weights()},
                      {"fingerprint", dataset.fingerprint()},
                      {"report", describe(dataset.report())}};
  write_json_file(writer_->directory.path() / kFacts, facts);
  writer_->directory.commit();
  writer_.reset();
  map_into(dataset, target_);
}

}  // namespace nibble
