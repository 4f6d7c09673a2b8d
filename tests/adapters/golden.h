#pragma once
// Golden values of tests/data/lora-golden and tests/data/peft, and a model with an adapter to hold against them.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "nibble/core/comm/communicator.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/io/npy.h"
#include "nibble/core/models/decoder.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/core/ops/optimizer.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/core/models/golden.h"

namespace nibble::test {

/// The arrays of an uncompressed .npz, as np.savez writes it.
inline std::map<std::string, std::vector<double>> read_npz(const std::filesystem::path& path) {
  const std::string zip = read_text_file(path);
  const auto number = [&](size_t at, size_t bytes) {
    size_t value = 0;
    for (size_t i = bytes; i-- > 0;) value = value << 8 | static_cast<unsigned char>(zip.at(at + i));
    return value;
  };
  std::map<std::string, std::vector<double>> arrays;
  size_t at = zip.find("PK\1\2");  // central directory: sizes are always there
  while (at != std::string::npos && zip.compare(at, 4, "PK\1\2") == 0) {
    const size_t size = number(at + 24, 4), name_size = number(at + 28, 2), local = number(at + 42, 4);
    const std::string name = zip.substr(at + 46, name_size);
    const std::string array = zip.substr(local + 30 + number(local + 26, 2) + number(local + 28, 2), size);
    const std::filesystem::path file =
        std::filesystem::temp_directory_path() / ("nibble-npz-" + std::to_string(::getpid()) + ".npy");
    std::ofstream(file, std::ios::binary) << array;
    const Tensor values = read_npy(file);
    std::vector<double> wide(static_cast<size_t>(values.numel()));
    for (size_t i = 0; i < wide.size(); ++i) {
      if (values.dtype() == DType::f64) std::memcpy(&wide[i], values.raw() + i * sizeof(double), sizeof(double));
      if (values.dtype() == DType::f32) wide[i] = values.data<const float>()[i];
    }
    std::filesystem::remove(file);
    arrays[name.substr(0, name.size() - std::string(".npy").size())] = std::move(wide);
    at += 46 + name_size + number(at + 30, 2) + number(at + 32, 2);
  }
  return arrays;
}

/// Rows of an int64 .npy as samples; labels may be absent.
inline std::vector<Sample> read_samples(const std::filesystem::path& ids, const std::filesystem::path& labels = {}) {
  const auto rows_of = [](const std::filesystem::path& path) {
    const Tensor values = read_npy(path);
    std::vector<std::vector<int32_t>> rows;
    for (int64_t i = 0; i < values.dim(0); ++i) {
      const int64_t* row = values.data<const int64_t>() + i * values.dim(1);
      rows.emplace_back(row, row + values.dim(1));
    }
    return rows;
  };
  std::vector<Sample> samples;
  for (auto& row : rows_of(ids)) samples.push_back({std::move(row), {}, samples.size()});
  if (!labels.empty()) {
    auto rows = rows_of(labels);
    for (size_t i = 0; i < rows.size(); ++i) samples[i].labels = std::move(rows[i]);
  }
  return samples;
}

/// Every parameter that is trained, with AdamW's state.
class AdamW {
 public:
  AdamW(Decoder& decoder, MemoryPool& pool) : decoder_(decoder), pool_(pool) {}
  void step(float lr, float weight_decay) {
    ++step_;
    decoder_.visit([&](Parameter& parameter) {
      if (!parameter.trainable) return;
      State& state = states_[parameter.name];
      if (!state.m) state = {Tensor::zeros(pool_, parameter.value.shape(), DType::f32), Tensor()};
      if (!state.v) state.v = Tensor::zeros(pool_, parameter.value.shape(), DType::f32);
      ops::adamw(parameter.value, parameter.gradient, state.m, state.v,
                 {.lr = lr, .weight_decay = weight_decay, .step = step_});
    });
  }

 private:
  struct State {
    Tensor m, v;
  };
  Decoder& decoder_;
  MemoryPool& pool_;
  int64_t step_ = 0;
  std::map<std::string, State> states_;
};

inline void zero_gradients(Decoder& decoder) {
  decoder.visit([](Parameter& parameter) {
    if (parameter.trainable) parameter.gradient.zero();
  });
}

/// Mean loss over the label tokens; gradients of the mean are left in the parameters.
inline double mean_loss(Decoder& decoder, const Batch& batch, const StepContext& step) {
  zero_gradients(decoder);
  const auto tokens = static_cast<double>(batch.label_tokens);
  return decoder.loss_sum_and_gradients(batch, step, static_cast<float>(1 / tokens)) / tokens;
}

/// Largest difference between `got` and an .npy of floats.
inline double largest_difference(const std::vector<float>& got, const std::filesystem::path& wanted) {
  const Tensor values = read_npy(wanted);
  EXPECT_EQ(static_cast<int64_t>(got.size()), values.numel()) << wanted;
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double difference = std::abs(double{got[i]} - values.data<const float>()[i]);
    worst = difference <= worst ? worst : difference;  // a NaN counts
  }
  return worst;
}

/// Largest difference of two lists of the same length.
inline double largest_distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = std::abs(double{a[i]} - b[i]);
    worst = difference <= worst ? worst : difference;  // a NaN counts
  }
  return worst;
}

}  // namespace nibble::test
