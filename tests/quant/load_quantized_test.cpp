#include "nibble/quant/load_quantized.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "nibble/core/comm/local_rank.h"
#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/io/npy.h"
#include "nibble/core/io/safetensors/safetensors.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/quant/nf4_weight.h"
#include "nibble/quant/quantize_model.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/quant/golden.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using test::elements;
using test::error_of;
using test::TemporaryDirectory;
using ::testing::HasSubstr;

std::map<std::string, bool> four_bit_linears(Decoder& decoder) {
  std::map<std::string, bool> found;
  decoder.visit_linears(
      [&](Linear& linear) { found[linear.name()] = dynamic_cast<const Nf4Weight*>(&linear.weight()) != nullptr; });
  return found;
}

// Rows of ids [batch, T] as samples, with labels if there are any.
Batch batch_of(const Tensor& ids, const Tensor& labels, MemoryPool& pool) {
  std::vector<Sample> samples(static_cast<size_t>(ids.dim(0)));
  for (size_t row = 0; row < samples.size(); ++row) {
    const auto i = static_cast<int64_t>(row);
    for (const int64_t id : elements<int64_t>(ids.rows(i, i + 1))) samples[row].ids.push_back(static_cast<int32_t>(id));
    if (!labels) continue;
    for (const int64_t label : elements<int64_t>(labels.rows(i, i + 1))) {
      samples[row].labels.push_back(static_cast<int32_t>(label));
    }
  }
  return make_batch(samples, pool);
}

TEST(LoadQuantized, LinearsOfA4BitDirectoryAreMapped) {
  LocalRank rank;
  Decoder decoder =
      load_decoder(test::data_path("stories-llama-nf4-dq"), rank.context(), load_quantized(rank.context()));
  int four_bit = 0;
  decoder.visit_linears([&](Linear& linear) {
    if (dynamic_cast<const Nf4Weight*>(&linear.weight()) == nullptr) return;
    ++four_bit;
    for (const Tensor* stored : linear.weight().storage()) EXPECT_FALSE(stored->writable());
  });
  EXPECT_EQ(four_bit, 35);
}

// A tensor of several matrices (experts): each is a part of the one, in 16 bits and in 4, quantized on the way or read.
TEST(LoadQuantized, TensorsOfSeveralMatricesAreTakenApartWithoutCopies) {
  constexpr int64_t kMatrices = 3, kOut = 10, kIn = 48;  // matrices begin within blocks of 64
  LocalRank rank;
  MemoryPool& pool = rank.context().pool;
  const std::string name = "model.layers.0.mlp.experts.gate_up_proj";
  TemporaryDirectory directory;
  const auto write = [&](const fs::path& folder, const std::vector<NamedTensor>& tensors, const std::string& config) {
    fs::create_directories(folder);
    std::vector<std::pair<std::string, Tensor>> all;
    for (const NamedTensor& tensor : tensors) all.emplace_back(tensor.name, tensor.value);
    write_safetensors(folder / "model.safetensors", all);
    test::write_bytes(folder / "config.json", config);
  };
  const std::string llama = R"("model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
      "num_attention_heads": 1, "vocab_size": 8)";
  Tensor values = Tensor::empty(pool, {kMatrices, kOut, kIn}, DType::f32);
  ops::fill_normal(values, 1, 5, 1);
  write(directory / "dense", {{name, values}}, "{" + llama + "}");

  // Linears of the tensor in `folder`.
  const auto open = [&](const CheckpointDir& checkpoint, const std::optional<QuantizeOnLoad>& quantize) {
    const LinearWeightMaker dense = [&](const std::string& module, const Shape& shape) {
      const Tensor stored = checkpoint.at(weight_name(module, shape));
      EXPECT_EQ(stored.shape(), shape);
      return std::make_unique<DenseWeight>(std::make_shared<Parameter>(Parameter{.name = module, .value = stored}));
    };
    const LoadOptions options = load_quantized(rank.context(), quantize);
    return Makers{options.wrap_linear(checkpoint, dense), {}}.make_linears(name, kMatrices, kOut, kIn);
  };
  // Their rows are those of `wanted` [n * out, in], and so are products with them.
  const auto expect = [&](std::vector<Linear>& linears, const Tensor& wanted) {
    ASSERT_EQ(linears.size(), static_cast<size_t>(kMatrices));
    for (int64_t m = 0; m < kMatrices; ++m) {
      const LinearWeight& weight = linears[static_cast<size_t>(m)].weight();
      EXPECT_EQ(linears[static_cast<size_t>(m)].name(), name + "." + std::to_string(m));
      ASSERT_EQ(weight.out_features(), kOut);
      const Tensor own = wanted.rows(m * kOut, (m + 1) * kOut);
      EXPECT_EQ(elements<float>(weight.dequantize(3, 7, pool)), elements<float>(own.rows(3, 7)));
      for (const int64_t tokens : {1, 7}) {
        Tensor x = Tensor::empty(pool, {tokens, kIn}, DType::f32), dy = Tensor::empty(pool, {tokens, kOut}, DType::f32);
        ops::fill_normal(x, 1, 6, 1);
        ops::fill_normal(dy, 1, 6, 2);
        Tensor y = dy.clone(pool), y_wanted = dy.clone(pool), dx = x.clone(pool), dx_wanted = x.clone(pool);
        weight.forward(x, y, false);
        ops::matmul_nt(x, own, y_wanted);
        weight.backward_input(dy, dx, false);
        ops::matmul_nn(dy, own, dx_wanted);
        for (int64_t i = 0; i < y.numel(); ++i) {
          EXPECT_NEAR(y.data<const float>()[i], y_wanted.data<const float>()[i], 1e-4);
        }
        for (int64_t i = 0; i < dx.numel(); ++i) {
          EXPECT_NEAR(dx.data<const float>()[i], dx_wanted.data<const float>()[i], 1e-4);
        }
      }
    }
    for (const Tensor* tensor : linears[1].weight().storage()) {
      EXPECT_TRUE(std::ranges::count(linears[0].weight().storage(), tensor));  // shared: sharded and gathered once
    }
    EXPECT_TRUE(linears[1].weight().parts().empty());  // saved by the first
  };

  const CheckpointDir dense(directory / "dense");
  const Tensor flat = values.reshape({kMatrices * kOut, kIn});
  std::vector<Linear> plain = open(dense, std::nullopt);
  expect(plain, flat);
  for (const Tensor* tensor : plain[2].weight().storage()) EXPECT_FALSE(tensor->writable());

  for (const bool double_quant : {false, true}) {
    const QuantizeOnLoad how{{QuantType::nf4, double_quant, 64}, std::vector<std::string>()};
    const QuantizedMatrix matrix = quantize(flat, how.codec, pool, name);
    const Tensor rounded = dequantize(matrix, 0, kMatrices * kOut, pool);
    std::vector<Linear> result = open(dense, how);
    expect(result, rounded);
    const fs::path folder = directory / (double_quant ? "double" : "single");
    write(folder, result[0].weight().parts(),
          "{" + llama + R"(, "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true,
              "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": )" +
              (double_quant ? "true}}" : "false}}"));
    const CheckpointDir written(folder);
    const Tensor state = written.at(name + ".quant_state.bitsandbytes__nf4");
    const std::string text(reinterpret_cast<const char*>(state.raw()), state.bytes());
    EXPECT_THAT(text, HasSubstr("\"shape\": [3, 10, 48]"));
    std::vector<Linear> read = open(written, std::nullopt);
    expect(read, rounded);
    for (const Tensor* tensor : read[2].weight().storage()) EXPECT_FALSE(tensor->writable());
  }
}

TEST(LoadQuantized, QuantizingOnTheWayGivesWhatTheWrittenDirectoryHas) {
  const std::filesystem::path source = test::data_path("stories-llama-bf16");
  LocalRank rank;
  TemporaryDirectory directory;
  QuantizeModelOptions written;
  written.codec.type = QuantType::fp4;
  quantize_model(source, directory / "out", written, rank.context());
  Decoder a = load_decoder(directory / "out", rank.context(), load_quantized(rank.context()));
  Decoder b = load_decoder(source, rank.context(), load_quantized(rank.context(), QuantizeOnLoad{written.codec, {}}));
  std::map<std::string, std::vector<NamedTensor>> parts;
  a.visit_linears([&](Linear& linear) { parts[linear.name()] = linear.weight().parts(); });
  EXPECT_EQ(parts.size(), 36u);
  b.visit_linears([&](Linear& linear) {
    const std::vector<NamedTensor> ours = linear.weight().parts(), &theirs = parts.at(linear.name());
    ASSERT_EQ(ours.size(), theirs.size());
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_EQ(ours[i].name, theirs[i].name);
      ASSERT_EQ(ours[i].value.bytes(), theirs[i].value.bytes());
      EXPECT_EQ(std::memcmp(ours[i].value.raw(), theirs[i].value.raw(), ours[i].value.bytes()), 0) << ours[i].name;
    }
  });
}

TEST(LoadQuantized, SkippedModulesStayDense) {
  const std::filesystem::path source = test::data_path("stories-llama");
  LocalRank rank;
  QuantizeOnLoad quantize;
  quantize.skip_modules = {"lm_head", "up_proj"};
  Decoder decoder = load_decoder(source, rank.context(), load_quantized(rank.context(), quantize));
  const auto linears = four_bit_linears(decoder);
  EXPECT_FALSE(linears.at("model.layers.0.mlp.up_proj"));
  EXPECT_TRUE(linears.at("model.layers.0.mlp.down_proj"));
}

TEST(LoadQuantized, WithoutAskingA16BitModelStaysDense) {
  const std::filesystem::path source = test::data_path("stories-llama");
  LocalRank rank;
  Decoder decoder = load_decoder(source, rank.context(), load_quantized(rank.context()));
  for (const auto& [name, four_bit] : four_bit_linears(decoder)) EXPECT_FALSE(four_bit) << name;
}

// The whole path: a bitsandbytes file, our reader, kernels and decoder, against a loss that torch computed in f64.
TEST(LoadQuantized, TheLossOfA4BitModelIsTorchs) {
  const std::filesystem::path golden = test::data_path("lora-golden");
  const std::filesystem::path source = test::data_path("stories-llama-nf4-dq");
  LocalRank rank;
  Decoder decoder = load_decoder(source, rank.context(), load_quantized(rank.context()));
  const Batch batch =
      batch_of(read_npy(golden / "input_ids.npy"), read_npy(golden / "labels.npy"), rank.context().pool);
  const nlohmann::json report = read_json_file(golden / "report.json");
  ASSERT_EQ(batch.label_tokens, report["tokens_scored"]);
  const StepContext step{.rank = rank.context(), .compute_dtype = DType::f32};
  EXPECT_NEAR(decoder.loss_sum(batch, step) / static_cast<double>(batch.label_tokens),
              report["qlora_nf4_dq"]["loss_without_adapter"], 2e-5);
}

// With ORACLE_PY, a Python that has what tests/oracles/requirements.txt lists: Transformers loads what we wrote and
// computes what we compute.
TEST(LoadQuantized, TransformersComputesTheSameWithWhatWeWrote) {
  const char* python = std::getenv("ORACLE_PY");
  if (python == nullptr) GTEST_SKIP() << "ORACLE_PY is not set";
  const std::filesystem::path golden = test::data_path("lora-golden");
  const std::filesystem::path source = test::data_path("stories-llama");
  LocalRank rank;
  const Tensor ids = read_npy(golden / "input_ids.npy");
  for (const QuantType type : {QuantType::nf4, QuantType::fp4}) {
    TemporaryDirectory directory;
    QuantizeModelOptions options;
    options.codec = {type, type == QuantType::nf4, 64};
    quantize_model(source, directory / "out", options, rank.context());
    const std::string command = std::string(python) + " " + kSourceDir + "/tests/oracles/load_4bit.py " +
                                (directory / "out").string() + " " + (golden / "input_ids.npy").string() + " " +
                                (directory / "logits.npy").string() + " >" + (directory / "log").string() + " 2>&1";
    ASSERT_EQ(std::system(command.c_str()), 0) << test::read_bytes(directory / "log");
    Decoder decoder = load_decoder(directory / "out", rank.context(), load_quantized(rank.context()));
    const StepContext step{.rank = rank.context(), .compute_dtype = DType::f32};
    std::vector<float> ours;
    decoder.logits(batch_of(ids, Tensor(), rank.context().pool), step, [&](int64_t, const Tensor& chunk) {
      const std::vector<float> values = elements<float>(chunk);
      ours.insert(ours.end(), values.begin(), values.end());
    });
    const std::vector<float> theirs = elements<float>(read_npy(directory / "logits.npy"));
    ASSERT_EQ(ours.size(), theirs.size());
    double largest = 0;
    for (size_t i = 0; i < ours.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(ours[i]) - static_cast<double>(theirs[i])));
    }
    EXPECT_LT(largest, 1e-3);
    RecordProperty("largest_difference", std::to_string(largest));
  }
}

TEST(LoadQuantized, AShapeThatIsNotTheConfigsIsNamed) {
  const std::filesystem::path source = test::data_path("stories-llama-nf4-dq");
  LocalRank rank;
  TemporaryDirectory directory;
  fs::copy_file(source / "model.safetensors", directory / "model.safetensors");
  std::string config = read_text_file(source / "config.json");
  const size_t at = config.find("172");
  test::write_bytes(directory / "config.json", config.replace(at, 3, "168"));
  EXPECT_THAT(
      error_of<InputError>([&] { load_decoder(directory.path(), rank.context(), load_quantized(rank.context())); }),
      HasSubstr("is a 4-bit matrix [172, 64], config.json makes it [168, 64]"));
}

TEST(LoadQuantized, APackedWeightNobodyAsksForIsReported) {
  const std::filesystem::path source = test::data_path("stories-llama-nf4-dq");
  LocalRank rank;
  TemporaryDirectory directory;
  fs::copy_file(source / "model.safetensors", directory / "model.safetensors");
  std::string config = read_text_file(source / "config.json");
  const std::string layers = "\"num_hidden_layers\": 5";
  test::write_bytes(directory / "config.json",
                    config.replace(config.find(layers), layers.size(), "\"num_hidden_layers\": 4"));
  EXPECT_THAT(
      error_of<InputError>([&] { load_decoder(directory.path(), rank.context(), load_quantized(rank.context())); }),
      HasSubstr("model.layers.4."));
}

}  // namespace
}  // namespace nibble
