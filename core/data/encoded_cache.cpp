#include "nibble/core/data/encoded_cache.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "nibble/core/base/error.h"
#include "nibble/core/base/machine.h"
#include "nibble/core/io/hash.h"
#include "nibble/core/io/json_file.h"
#include "nibble/core/tensor/storage.h"

namespace nibble {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kTokens = "tokens.bin";
constexpr const char* kSamples = "samples.bin";
constexpr const char* kFacts = "data.json";
constexpr size_t kPiece = size_t{64} << 20;

// A sample in samples.bin.
struct Row {
  uint64_t first;
  uint32_t length, trained, record;
  uint16_t source;
  uint16_t whole;
};
static_assert(sizeof(Row) == 24);

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
    {"longest", &DatasetReport::longest}};

std::string key_of(const std::vector<DataSource>& sources, const std::vector<DataFile>& files,
                   const DataOptions& options, const Encoder& encoder) {
  Json said = {{"nibble", std::string(version())},
               {"encoder", encoder.fingerprint},
               {"vocab_size", encoder.vocab_size},
               {"prefix", encoder.prefix},
               {"eos", encoder.eos ? Json(*encoder.eos) : Json()},
               {"format", static_cast<int>(options.format)},
               {"fields", options.fields},
               {"max_length", options.max_length},
               {"train_on_prompt", options.train_on_prompt},
               {"truncate", static_cast<int>(options.truncate)},
               {"skip_bad", options.skip_bad}};
  for (const DataSource& source : sources) said["weights"].push_back(source.weight);
  for (const DataFile& file : files)
    said["files"].push_back({hash_file(file.path), fs::path(file.path).extension().string(), file.source});
  const std::string text = said.dump();
  return hash_bytes(std::as_bytes(std::span(text)));
}

// The hash of mapped bytes, of which none stay in memory.
std::string hash_of(const FileMap& map) {
  Hasher hasher;
  for (size_t begin = 0; begin < map.size(); begin += kPiece) {
    const size_t count = std::min(kPiece, map.size() - begin);
    hasher.update({map.data() + begin, count});
    release_codes(reinterpret_cast<const int32_t*>(map.data() + begin),
                  reinterpret_cast<const int32_t*>(map.data() + begin + count));
  }
  return hasher.hex();
}

Json describe(const DatasetReport& report) {
  Json said = {{"lengths", report.lengths}, {"first_bad", report.first_bad}, {"warnings", report.warnings}};
  for (const auto& [name, member] : kCounts) said[name] = report.*member;
  for (const DataFileFacts& file : report.files)
    said["files"].push_back({file.records, file.bytes, file.hash, static_cast<int>(file.format)});
  return said;
}

DatasetReport read_report(const Json& said, const std::vector<DataFile>& files) {
  DatasetReport report;
  for (const auto& [name, member] : kCounts) report.*member = said.at(name).get<int64_t>();
  said.at("lengths").get_to(report.lengths);
  said.at("first_bad").get_to(report.first_bad);
  said.at("warnings").get_to(report.warnings);
  for (size_t i = 0; i < files.size(); ++i) {
    const Json& file = said.at("files").at(i);
    report.files.push_back({files[i].path, file.at(0).get<int64_t>(), file.at(1).get<uint64_t>(),
                            file.at(2).get<uint64_t>(), static_cast<DataFormat>(file.at(3).get<int>())});
  }
  return report;
}

}  // namespace

EncodedCache::EncodedCache(const std::vector<DataSource>& sources, const std::vector<DataFile>& files,
                           const DataOptions& options, const Encoder& encoder)
    : files_(files), target_(fs::path(options.cache) / key_of(sources, files, options, encoder)) {}

EncodedCache::~EncodedCache() = default;

std::optional<Dataset> EncodedCache::find() const {
  if (!fs::exists(target_ / kFacts)) return std::nullopt;
  try {
    const Json facts = read_json_file(target_ / kFacts);
    const auto tokens = std::make_shared<const FileMap>((target_ / kTokens).string());
    const FileMap table((target_ / kSamples).string());
    if (hash_of(*tokens) != facts.at("tokens") || hash_of(table) != facts.at("samples")) return std::nullopt;
    Dataset made;
    made.mapped_ = true;
    facts.at("weights").get_to(made.weights_);
    facts.at("fingerprint").get_to(made.fingerprint_);
    made.report_ = read_report(facts.at("report"), files_);
    const auto* codes = reinterpret_cast<const int32_t*>(tokens->data());
    made.blocks_.emplace_back(tokens, codes);
    made.samples_.reserve(table.size() / sizeof(Row));
    for (size_t at = 0; at + sizeof(Row) <= table.size(); at += sizeof(Row)) {
      Row row;
      std::memcpy(&row, table.data() + at, sizeof row);
      if (row.first + row.length > tokens->size() / sizeof(int32_t) || row.source >= made.weights_.size())
        return std::nullopt;
      made.samples_.push_back({codes + row.first, row.length, row.trained, row.record, row.source, row.whole != 0});
    }
    return made;
  } catch (const Error&) {  // what cannot be read is made again
    return std::nullopt;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

TokenFile& EncodedCache::tokens() {
  if (!tokens_) {
    building_ = std::make_unique<AtomicDirectory>(target_, true);
    tokens_ = std::make_unique<TokenFile>(building_->path() / kTokens);
  }
  return *tokens_;
}

void EncodedCache::store(const Dataset& dataset, const std::vector<Block>& blocks) {
  NIBBLE_CHECK(tokens_ && building_, "a cache that is being written");
  AtomicFile table(building_->path() / kSamples);
  std::vector<Row> rows;
  uint64_t end = 0;
  const auto flush = [&] {
    table.write(std::as_bytes(std::span(rows)));
    rows.clear();
  };
  size_t k = 0;
  for (const SampleInfo& sample : dataset.samples()) {
    while (sample.codes < blocks[k].begin || sample.codes >= blocks[k].begin + blocks[k].size) ++k;
    const uint64_t first = blocks[k].first + static_cast<uint64_t>(sample.codes - blocks[k].begin);
    rows.push_back({first, sample.length, sample.trained, sample.record, sample.source, sample.whole});
    end = first + sample.length;
    if (rows.size() == 1 << 16) flush();
  }
  flush();
  table.commit();
  tokens_->finish(end);
  const Json facts = {{"tokens", hash_of(FileMap((building_->path() / kTokens).string()))},
                      {"samples", hash_file(building_->path() / kSamples)},
                      {"weights", dataset.weights()},
                      {"fingerprint", dataset.fingerprint()},
                      {"report", describe(dataset.report())}};
  write_json_file(building_->path() / kFacts, facts);
  building_->commit();
}

}  // namespace nibble
