#pragma once
// Models and numbers made by other software, as tests take them.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "nibble/core/comm/local_rank.h"
#include "nibble/core/io/npy.h"
#include "nibble/core/io/safetensors/safetensors.h"
#include "nibble/core/models/generation/generate.h"
#include "nibble/core/models/load.h"
#include "nibble/tests/assets.h"

namespace nibble::test {

/// One rank and the step a model computes in.
struct Rank {
  explicit Rank(int threads = 2) : local(threads) {}
  StepContext step(DType compute_dtype = DType::f32) {
    return {.rank = local.context(), .compute_dtype = compute_dtype, .row_keys = {}};
  }
  RankContext& context() { return local.context(); }
  LocalRank local;
};

inline std::vector<float> read_floats(const std::filesystem::path& path) {
  const Tensor array = read_npy(path);
  return {array.span<const float>().begin(), array.span<const float>().end()};
}

/// An i64 array of any rank as one list of ids.
inline std::vector<int32_t> read_ids(const std::filesystem::path& path) {
  const Tensor array = read_npy(path);
  return {array.span<const int64_t>().begin(), array.span<const int64_t>().end()};
}

/// All logits of `batch` [T, V].
inline std::vector<float> all_logits(Decoder& decoder, const Batch& batch, const StepContext& step,
                                     KvCache* cache = nullptr) {
  std::vector<float> result;
  decoder.logits(
      batch, step,
      [&](int64_t, const Tensor& chunk) {
        result.insert(result.end(), chunk.span<const float>().begin(), chunk.span<const float>().end());
      },
      cache);
  return result;
}

inline double largest_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
  }
  return worst;
}

inline double norm(std::span<const float> values) {
  double sum = 0;
  for (float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum);
}

inline double distance(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += difference * difference;
  }
  return std::sqrt(sum);
}

inline nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

/// Gradients of all trainable parameters by name.
inline std::map<std::string, std::vector<float>> gradients_of(Decoder& decoder) {
  std::map<std::string, std::vector<float>> result;
  decoder.visit([&](Parameter& parameter) {
    if (!parameter.trainable) return;
    const std::span<const float> values = parameter.gradient.span<const float>();
    result[parameter.name] = {values.begin(), values.end()};
  });
  return result;
}

/// A case of tests/oracles/families.py.
struct FamilyCase {
  explicit FamilyCase(const std::filesystem::path& path)
      : record(read_json(path / "case.json")), model(path / "model"), folder(path) {
    const std::vector<int32_t> ids = read_ids(path / "input_ids.npy"), labels = read_ids(path / "labels.npy");
    const size_t length = record["length"].get<size_t>();
    for (size_t begin = 0; begin < ids.size(); begin += length) {
      const auto row = [&](const std::vector<int32_t>& all) {
        return std::vector<int32_t>(all.begin() + static_cast<long>(begin),
                                    all.begin() + static_cast<long>(begin + length));
      };
      samples.push_back({.ids = row(ids), .labels = row(labels), .index = begin / length});
    }
  }
  nlohmann::json record;
  std::filesystem::path model, folder;
  std::vector<Sample> samples;
};

/// `gradients` are all of a file that Transformers or PEFT computed, tensor by tensor.
inline void expect_gradients(const std::map<std::string, std::vector<float>>& gradients,
                             const std::filesystem::path& wanted_file) {
  const SafetensorsFile file(wanted_file.string());
  EXPECT_EQ(gradients.size(), file.names().size());
  double squares = 0;
  for (const std::string& name : file.names()) squares += std::pow(norm(file.at(name).span<const float>()), 2);
  for (const std::string& name : file.names()) {
    ASSERT_TRUE(gradients.contains(name)) << name;
    const std::span<const float> wanted = file.at(name).span<const float>();
    EXPECT_LE(distance(gradients.at(name), wanted), 1e-3 * norm(wanted) + 1e-6 * std::sqrt(squares)) << name;
  }
}

}  // namespace nibble::test
