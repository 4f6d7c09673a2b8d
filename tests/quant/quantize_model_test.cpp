#include "nibble/quant/quantize_model.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "nibble/core/comm/local_rank.h"
#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/models/load.h"
#include "nibble/quant/bnb_layout.h"
#include "nibble/quant/quantization_config.h"
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

class QuantizeModel : public ::testing::Test {
 protected:
  LocalRank rank;
  TemporaryDirectory directory;
  QuantizeModelOptions options;
};

// How the tensors of two 4-bit checkpoints differ.
struct Differences {
  int scale_codes = 0;  ///< double-quantized scales with another code, by how many steps at most:
  int largest_step = 0;
  int offsets = 0;             ///< states, which differ in the last bits of the offset
  double nested_relative = 0;  ///< largest relative difference of a nested scale
};

Differences compare(const CheckpointDir& ours, const CheckpointDir& theirs) {
  Differences found;
  EXPECT_EQ(ours.names(), theirs.names());
  MemoryPool pool;
  for (const std::string& name : theirs.names()) {
    const Tensor a = ours.at(name), b = theirs.at(name);
    EXPECT_EQ(a.dtype(), b.dtype()) << name;
    if (a.bytes() == b.bytes() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0) continue;
    if (name.ends_with(".weight.absmax")) {
      const std::vector<uint8_t> x = elements<uint8_t>(a), y = elements<uint8_t>(b);
      for (size_t i = 0; i < x.size(); ++i) {
        found.scale_codes += x[i] != y[i];
        found.largest_step = std::max(found.largest_step, std::abs(x[i] - y[i]));
      }
    } else if (name.ends_with(".weight.nested_absmax")) {
      const std::vector<float> x = elements<float>(a), y = elements<float>(b);
      for (size_t i = 0; i < x.size(); ++i) {
        found.nested_relative = std::max(found.nested_relative, std::abs(static_cast<double>(x[i] / y[i]) - 1));
      }
    } else if (const size_t state = name.find(".quant_state."); state != std::string::npos) {
      ++found.offsets;
      const std::string weight = name.substr(0, state);
      const float x = read_quantized(ours, weight, pool).nested_offset;
      const float y = read_quantized(theirs, weight, pool).nested_offset;
      EXPECT_NEAR(x, y, 2 * std::abs(y) * std::numeric_limits<float>::epsilon()) << name;
    } else {
      ADD_FAILURE() << name << " differs";
    }
  }
  return found;
}

TEST_F(QuantizeModel, GivesTheFileThatTransformersSaves) {
  const fs::path source = test::data_path("stories-llama"), golden = test::data_path("stories-llama-nf4-dq");
  const QuantizeModelReport report = quantize_model(source, directory / "out", options, rank.context());
  EXPECT_EQ(report.quantized, 35);
  const Differences found = compare(CheckpointDir(directory / "out"), CheckpointDir(golden));
  EXPECT_LE(found.scale_codes, 8);  // of 3540: the table of bitsandbytes' CPU library
  EXPECT_LE(found.largest_step, 1);
  EXPECT_EQ(found.nested_relative, 0);
  EXPECT_EQ(found.offsets, 0);
  EXPECT_EQ(fs::file_size(directory / "out/model.safetensors"), fs::file_size(golden / "model.safetensors"));
  EXPECT_EQ(read_json_file(directory / "out/config.json")["quantization_config"],
            read_json_file(golden / "config.json")["quantization_config"]);
}

TEST_F(QuantizeModel, SmallerPartsOfTheDirectoryComeAlong) {
  const std::filesystem::path source = test::data_path("stories-llama");
  quantize_model(source, directory / "out", options, rank.context());
  EXPECT_TRUE(fs::exists(directory / "out/tokenizer.model"));
  EXPECT_TRUE(fs::exists(directory / "out/generation_config.json"));
  EXPECT_FALSE(fs::exists(directory / "out/golden_ids.npy"));
  EXPECT_EQ(std::distance(fs::directory_iterator(directory.path()), {}), 1);
}

TEST_F(QuantizeModel, OtherTensorsOfA16BitModelKeepTheirBytes) {
  const std::filesystem::path source = test::data_path("stories-llama-bf16");
  options.codec = {QuantType::fp4, false, 128};
  quantize_model(source, directory / "out", options, rank.context());
  const CheckpointDir in(source), out(directory / "out");
  MemoryPool pool;
  for (const std::string& name : in.names()) {
    const Tensor a = in.at(name), b = out.at(name);
    if (is_quantized(out, name)) {
      EXPECT_EQ(read_quantized(out, name, pool).original_dtype, DType::bf16);
      EXPECT_EQ(read_quantized(out, name, pool).block_size, 128);
    } else {
      EXPECT_EQ(b.dtype(), DType::bf16) << name;
      EXPECT_EQ(std::memcmp(a.raw(), b.raw(), a.bytes()), 0) << name;
    }
  }
  EXPECT_EQ(read_json_file(directory / "out/config.json")["quantization_config"]["bnb_4bit_compute_dtype"], "bfloat16");
}

TEST_F(QuantizeModel, SkippedModulesStayAsTheyAreAndAreWrittenDown) {
  const std::filesystem::path source = test::data_path("stories-llama");
  options.skip_modules = {"lm_head", "model.layers.1", "down_proj"};
  const QuantizeModelReport report = quantize_model(source, directory / "out", options, rank.context());
  EXPECT_EQ(report.quantized, 35 - 7 - 4);
  const CheckpointDir out(directory / "out");
  EXPECT_FALSE(is_quantized(out, "model.layers.1.mlp.up_proj.weight"));
  EXPECT_FALSE(is_quantized(out, "model.layers.0.mlp.down_proj.weight"));
  EXPECT_TRUE(is_quantized(out, "model.layers.0.mlp.up_proj.weight"));
  EXPECT_EQ(read_json_file(directory / "out/config.json")["quantization_config"]["llm_int8_skip_modules"],
            nlohmann::json({"lm_head", "model.layers.1", "down_proj"}));
}

TEST_F(QuantizeModel, ModulesToSkipThatAreNotThereAreRefused) {
  options.skip_modules = {"lm_head", "down_prj"};
  EXPECT_THAT(test::error_of<UsageError>([&] {
                quantize_model(test::data_path("stories-llama"), directory / "out", options, rank.context());
              }),
              testing::HasSubstr("--skip: \"down_prj\" is no module of the model; did you mean down_proj?"));
  EXPECT_THAT(
      test::error_of<UsageError>([] {
        SkipRule({{"self_attn"}}, {}).require_used(std::vector<std::string>{"layers.0.self_attn.q_proj"}, "key");
      }),
      testing::HasSubstr("for what is inside of it write \".*self_attn\""));
}

// Transformers would put its Linears in 4 bits.
TEST_F(QuantizeModel, TheTowersOfAModelStayAsTheyAreAndAreWrittenDown) {
  const nlohmann::json text = {
      {"model_type", "qwen3_5_text"}, {"hidden_size", 64},        {"intermediate_size", 64}, {"num_hidden_layers", 1},
      {"num_attention_heads", 2},     {"num_key_value_heads", 2}, {"head_dim", 32},          {"vocab_size", 64},
      {"full_attention_interval", 1}};
  const nlohmann::json config = {{"model_type", "qwen3_5"}, {"tie_word_embeddings", false}, {"text_config", text}};
  Decoder decoder = random_decoder(parse_decoder_config(config.dump(), "test"), 1, rank.context());
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const NamedTensor& tensor : state_dict(decoder)) tensors.emplace_back(tensor.name, tensor.value);
  for (const char* name : {"model.visual.blocks.0.mlp.linear_fc1.weight", "mtp.fc.weight"}) {
    tensors.emplace_back(name, Tensor::zeros(rank.context().pool, {64, 64}, DType::f32));
  }
  fs::create_directory(directory / "in");
  write_safetensors(directory / "in/model.safetensors", tensors);
  test::write_bytes(directory / "in/config.json", config.dump());
  quantize_model(directory / "in", directory / "out", options, rank.context());
  EXPECT_EQ(read_json_file(directory / "out/config.json")["quantization_config"]["llm_int8_skip_modules"],
            nlohmann::json({"lm_head", "model.visual", "mtp"}));
}

TEST_F(QuantizeModel, ProgressEndsAtTheTotal) {
  const std::filesystem::path source = test::data_path("stories-llama");
  uint64_t last = 0, whole = 0;
  options.progress = [&](const std::string&, uint64_t done, uint64_t total) {
    EXPECT_GE(done, last);
    last = done;
    whole = total;
  };
  quantize_model(source, directory / "out", options, rank.context());
  EXPECT_EQ(last, whole);
  EXPECT_GT(whole, 0u);
}

// A copy of the model whose tensors can be changed.
class ChangedModel : public QuantizeModel {
 protected:
  void copy(const fs::path& source, const std::function<void(const std::string&, Tensor&)>& change) {
    fs::create_directory(directory / "in");
    fs::copy_file(source / "config.json", directory / "in/config.json");
    const CheckpointDir checkpoint(source);
    std::vector<std::pair<std::string, Tensor>> tensors;
    for (const std::string& name : checkpoint.names()) {
      Tensor value = checkpoint.at(name).clone(rank.context().pool);
      change(name, value);
      if (value) tensors.emplace_back(name, value);
    }
    write_safetensors(directory / "in/model.safetensors", tensors);
  }
  template <typename E>
  std::string refusal() {
    const std::string message =
        error_of<E>([&] { quantize_model(directory / "in", directory / "out", options, rank.context()); });
    EXPECT_EQ(std::distance(fs::directory_iterator(directory.path()), {}), 1) << "something was left behind";
    return message;
  }
};

TEST_F(ChangedModel, AnElementThatIsNotFiniteEndsItWithNothingWritten) {
  const std::filesystem::path source = test::data_path("stories-llama");
  copy(source, [](const std::string& name, Tensor& value) {
    if (name == "model.layers.3.mlp.up_proj.weight") {
      value.data<float>()[100 * 64 + 5] = std::numeric_limits<float>::infinity();
    }
  });
  for (const bool double_quant : {true, false}) {
    options.codec.double_quant = double_quant;
    EXPECT_THAT(refusal<NumericError>(), HasSubstr("model.layers.3.mlp.up_proj.weight: element [100, 5] is infinite"));
  }
}

TEST_F(ChangedModel, OfTensorsThatStayAsTheyAreToo) {
  copy(test::data_path("stories-llama"), [](const std::string& name, Tensor& value) {
    if (name == "model.norm.weight") value.data<float>()[5] = std::numeric_limits<float>::quiet_NaN();
  });
  EXPECT_THAT(refusal<NumericError>(), HasSubstr("model.safetensors: model.norm.weight, element 5 of 64, is nan"));
}

TEST_F(ChangedModel, AMissingOrMisshapenWeightIsNamed) {
  const std::filesystem::path source = test::data_path("stories-llama");
  copy(source, [](const std::string& name, Tensor& value) {
    if (name == "model.layers.3.mlp.up_proj.weight") value = value.reshape({64, 172});
  });
  EXPECT_THAT(refusal<InputError>(), HasSubstr("has shape [64, 172], config.json makes it [172, 64]"));
  fs::remove_all(directory / "in");
  copy(source, [](const std::string& name, Tensor& value) {
    if (name == "model.layers.3.mlp.up_proj.weight") value = Tensor();
  });
  EXPECT_THAT(refusal<InputError>(), HasSubstr("has no tensor \"model.layers.3.mlp.up_proj.weight\""));
}

TEST_F(ChangedModel, TargetsThatCannotBeAreRefused) {
  const std::filesystem::path source = test::data_path("stories-llama");
  copy(source, [](const std::string&, Tensor&) {});
  const auto refuse = [&](const fs::path& in, const fs::path& out) {
    return error_of<UsageError>([&] { quantize_model(in, out, options, rank.context()); });
  };
  options.replace = Replace::anything;
  EXPECT_THAT(refuse(directory / "in", directory / "in"), HasSubstr("in: is an input, which is read"));
  EXPECT_THAT(refuse(directory / "in", directory / "in/4bit"), HasSubstr("lies in"));
  EXPECT_THAT(refuse(directory / "in", directory.path()), HasSubstr("contains"));
  options.replace = Replace::nothing;
  quantize_model(directory / "in", directory / "out", options, rank.context());
  EXPECT_THAT(refuse(directory / "in", directory / "out"), HasSubstr("exists already"));
  EXPECT_THAT(refuse(directory / "out", directory / "again"), HasSubstr("quantized already"));
  options.replace = Replace::own;
  quantize_model(directory / "in", directory / "out", options, rank.context());
}

TEST_F(QuantizeModel, MemoryIsThatOfOneTensor) {
  const std::filesystem::path source = test::data_path("stories-llama");
  LocalRank small(0, 0, 100'000);  // the model has 1 MB, its largest Linear 44 KB
  quantize_model(source, directory / "out", options, small.context());
  EXPECT_LT(small.context().pool.peak(), 20'000u);
}

}  // namespace
}  // namespace nibble
