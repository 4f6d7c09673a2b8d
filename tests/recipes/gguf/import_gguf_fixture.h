#pragma once
// Models that become GGUF files and come back.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "nibble/core/comm/local_rank.h"
#include "nibble/core/io/gguf/gguf.h"
#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/io/hub/model_directory.h"
#include "nibble/core/models/decoder_config.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/recipes/gguf/export_gguf.h"
#include "nibble/recipes/gguf/import_gguf.h"
#include "nibble/recipes/models/init_model.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {

inline void expect_same_weights(const std::filesystem::path& got, const std::filesystem::path& want) {
  const CheckpointDir a(got), b(want);
  ASSERT_EQ(a.names(), b.names());
  for (const std::string& name : b.names()) {
    const Tensor x = a.at(name), y = b.at(name);
    ASSERT_EQ(x.shape(), y.shape()) << name;
    ASSERT_EQ(x.dtype(), y.dtype()) << name;
    EXPECT_EQ(std::memcmp(x.raw(), y.raw(), y.bytes()), 0) << name;
  }
}

/// What of two configs a GGUF file says.
inline void expect_same_config(DecoderConfig got, const DecoderConfig& want) {
  EXPECT_EQ(got.model_type, want.model_type);
  EXPECT_EQ(got.heads, want.heads);
  EXPECT_EQ(got.kv_heads, want.kv_heads);
  EXPECT_EQ(got.head_size, want.head_size);
  EXPECT_EQ(got.mlp_width, want.mlp_width);
  if (!want.rope.empty()) {
    EXPECT_NEAR(got.rope[0].magnitude, want.rope[0].magnitude, 1e-6);  // a float in the file
    got.rope[0].magnitude = want.rope[0].magnitude;
  }
  EXPECT_EQ(got.rope, want.rope);
  for (size_t l = 0; l < want.layer.size(); ++l) {
    EXPECT_EQ(got.layer[l].rotary, want.layer[l].rotary);
    EXPECT_EQ(got.layer[l].window, want.layer[l].window);
    EXPECT_EQ(got.layer[l].has_mixer, want.layer[l].has_mixer);
    EXPECT_EQ(got.layer[l].mixer.target_type(), want.layer[l].mixer.target_type());
    EXPECT_EQ(static_cast<bool>(got.layer[l].feed_forward), static_cast<bool>(want.layer[l].feed_forward));
    EXPECT_EQ(got.layer[l].kv_heads, want.layer[l].kv_heads);
    EXPECT_EQ(got.layer[l].head_size, want.layer[l].head_size);
    EXPECT_EQ(got.layer[l].mlp_width, want.layer[l].mlp_width);
    EXPECT_EQ(got.layer[l].keys_from, want.layer[l].keys_from);
  }
  EXPECT_FLOAT_EQ(got.attention_scale, want.attention_scale);
  EXPECT_FLOAT_EQ(got.logit_scale, want.logit_scale);
  EXPECT_FLOAT_EQ(got.embedding_scale, want.embedding_scale);
  EXPECT_FLOAT_EQ(got.residual_scale, want.residual_scale);
  EXPECT_FLOAT_EQ(got.qkv_clip, want.qkv_clip);
  EXPECT_EQ(got.attention_softcap, want.attention_softcap);
  EXPECT_EQ(got.logit_softcap, want.logit_softcap);
  EXPECT_EQ(got.parallel_residual, want.parallel_residual);
  EXPECT_EQ(got.tied_head, want.tied_head);
  EXPECT_EQ(got.norm.eps, want.norm.eps);
  ASSERT_EQ(got.experts.has_value(), want.experts.has_value());
  if (!want.experts) return;
  EXPECT_EQ(got.experts->experts, want.experts->experts);
  EXPECT_EQ(got.experts->hidden, want.experts->hidden);
  EXPECT_EQ(got.experts->latent, want.experts->latent);
  EXPECT_EQ(got.experts->shared_hidden, want.experts->shared_hidden);
  EXPECT_EQ(got.experts->routing.k, want.experts->routing.k);
  EXPECT_EQ(got.experts->routing.scale, want.experts->routing.scale);
  EXPECT_EQ(got.experts->routing.groups, want.experts->routing.groups);
  EXPECT_EQ(got.experts->routing.top_groups, want.experts->routing.top_groups);
  EXPECT_EQ(got.experts->routing.normalize, want.experts->routing.normalize);
  EXPECT_EQ(got.experts->routing.score, want.experts->routing.score);
}

class ImportGguf : public ::testing::Test {
 protected:
  std::filesystem::path result(const std::string& config, const std::string& dtype = "f32") {
    std::ofstream(directory_ / "config.json") << config;
    InitRequest request;
    request.config = (directory_ / "config.json").string();
    request.out = (directory_ / "model").string();
    request.dtype = dtype;
    std::filesystem::remove_all(request.out);
    init_model(request);
    return request.out;
  }
  // Nothing is a constant, as norms and biases of a new model are. wide: ends of names of tensors in f32.
  std::filesystem::path random_model(const std::string& config, DType dtype,
                                     const std::vector<std::string>& wide = {}) {
    const std::filesystem::path made = result(config, dtype == DType::f32 ? "f32" : "bf16");
    const CheckpointDir checkpoint(made);
    std::vector<TensorSpec> specs;
    for (const std::string& name : checkpoint.names()) {
      const bool is_wide = std::ranges::any_of(wide, [&](const std::string& end) { return name.ends_with(end); });
      specs.push_back({name, checkpoint.at(name).shape(), is_wide ? DType::f32 : dtype});
    }
    std::filesystem::create_directories(directory_ / "random");
    ModelDirectoryWriter writer(directory_ / "random/model", Replace::own, specs);
    for (uint64_t i = 0; i < specs.size(); ++i) {
      Tensor value = Tensor::empty(rank_.context().pool, specs[i].shape, specs[i].dtype, "random values");
      ops::fill_normal(value, 1, 7, i);
      writer.write(specs[i].name, value);
    }
    writer.write_text("config.json", config);
    writer.finish();
    return directory_ / "random/model";
  }
  std::filesystem::path exported(const std::filesystem::path& model, const std::string& type = "f32") {
    GgufRequest request;
    request.model = model.string();
    request.out = (directory_ / "model.gguf").string();
    request.replace = Replace::own;
    request.type = type;
    request.tokenizer = false;
    export_gguf(request, rank_.context());
    return request.out;
  }
  /// The file with other metadata, or with fewer parts of its tensors.
  void write_again(const GgufFile& whole, const std::map<std::string, GgufValue>& metadata,
                   const std::vector<GgufTensor>& tensors, const std::filesystem::path& to) {
    GgufWriter writer(to, {metadata.begin(), metadata.end()}, tensors);
    for (const GgufTensor& tensor : tensors) {
      const int64_t rows = element_count(tensor.shape) / tensor.shape.back();
      writer.append(tensor.name, whole.rows(*whole.find(tensor.name), 0, rows, rank_.context().pool));
    }
    writer.finish();
  }
  std::filesystem::path imported(const std::filesystem::path& file) {
    ImportRequest request;
    request.file = file.string();
    std::filesystem::create_directories(directory_ / "back");
    request.out = (directory_ / "back/model").string();  // whose name is in a file made of it
    request.replace = Replace::own;
    import_gguf(request, rank_.context());
    return request.out;
  }

  LocalRank rank_;
  test::TemporaryDirectory directory_;
};

}  // namespace nibble
