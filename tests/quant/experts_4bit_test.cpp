// Mixtures whose experts are in 4 bits: as gpt-oss was published (MXFP4), and as bitsandbytes would have them.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include "nibble/adapters/attach.h"
#include "nibble/core/base/error.h"
#include "nibble/core/base/parallel.h"
#include "nibble/core/io/hub/checkpoint_dir.h"
#include "nibble/core/models/families/expert_tensors.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/quant/dequantized_source.h"
#include "nibble/quant/load_quantized.h"
#include "nibble/quant/mxfp4_layout.h"
#include "nibble/quant/nf4_weight.h"
#include "nibble/quant/quantize_model.h"
#include "nibble/tests/core/models/golden.h"
#include "nibble/tests/core/models/mixtures.h"
#include "nibble/tests/core/ops/four_bit_matrix.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using namespace nibble::test;
using ::testing::HasSubstr;

class Experts4Bit : public ::testing::Test {
 protected:
  using Named = std::vector<std::pair<std::string, Tensor>>;

  void write(const fs::path& folder, const Named& tensors, const std::string& config) {
    fs::create_directories(folder);
    write_safetensors(folder / "model.safetensors", tensors);
    write_bytes(folder / "config.json", config);
  }

  Decoder open(const std::string& model, const std::optional<QuantizeOnLoad>& quantize = std::nullopt) {
    return load_decoder(directory / model, rank.context(), load_quantized(rank.context(), quantize));
  }

  std::vector<float> logits(Decoder decoder) {
    const Sample sample{.ids = {1, 5, 9, 20, 33, 2, 7, 40, 11, 3}, .labels = {}};
    return all_logits(decoder, make_batch({&sample, 1}, pool), rank.step());
  }

  // A model as `dequantized_source` gives it, as a directory.
  void write_plain(const std::string& from, const std::string& to) {
    const CheckpointDir checkpoint(directory / from);
    const TensorSource source = dequantized_source(checkpoint, pool);
    Named tensors;
    for (const TensorSpec& spec : source.tensors) {
      Tensor whole = Tensor::empty(pool, spec.shape, DType::f32);
      for (int64_t i = 0; i < spec.shape[0]; ++i) {  // row by row: any piece can be asked for
        Tensor row = whole.rows(i, i + 1);
        ops::cast(source.rows(spec.name, i, i + 1, pool), row);
      }
      tensors.emplace_back(spec.name, whole);
    }
    nlohmann::json config = nlohmann::json::parse(checkpoint.config_text());
    config.erase("quantization_config");
    write(directory / to, tensors, config.dump());
  }

  static int four_bit_linears(Decoder& decoder) {
    int count = 0;
    decoder.visit_linears([&](Linear& linear) { count += dynamic_cast<Nf4Weight*>(&linear.weight()) != nullptr; });
    return count;
  }

  std::string refusal(const std::string& model) {
    try {
      open(model);
    } catch (const InputError& error) {
      return error.what();
    }
    return "no error";
  }

  Rank rank;
  MemoryPool& pool = rank.context().pool;
  TemporaryDirectory directory;
};

class Mxfp4 : public Experts4Bit {
 protected:
  // gpt_oss with random blocks, and the same with plain tensors.
  Mxfp4() {
    const std::string config = mixture_config("gpt_oss");
    Decoder decoder = random_decoder(parse_decoder_config(config, "test"), 3, rank.context());
    Named plain;
    for (const NamedTensor& tensor : state_dict(decoder)) {
      const bool experts = tensor.name.ends_with("experts.gate_up_proj") || tensor.name.ends_with("experts.down_proj");
      if (!experts) {
        packed.emplace_back(tensor.name, tensor.value);
        plain.emplace_back(tensor.name, tensor.value);
        continue;
      }
      const int64_t in = tensor.value.dim(1), out = tensor.value.dim(2);
      const ops::FourBitMatrix matrix = random_mxfp4(pool, 4 * out, in, 120);
      packed.emplace_back(mxfp4_blocks_name(tensor.name), matrix.packed.clone(pool).reshape({4, out, in / 32, 16}));
      packed.emplace_back(mxfp4_scales_name(tensor.name), matrix.exponents.clone(pool).reshape({4, out, in / 32}));
      Tensor turned = Tensor::empty(pool, {4, in, out}, DType::f32);
      for (int64_t i = 0; i < turned.numel(); ++i) {
        const int64_t e = i / (in * out), row = i / out % in, column = i % out;
        turned.data<float>()[i] = ops::ref::element(matrix, e * out + column, row);
      }
      plain.emplace_back(tensor.name, turned);
    }
    write(directory / "plain", plain, config);
    write(directory / "published", packed, published);
  }

  std::string published = mixture_config("gpt_oss", R"(, "quantization_config": {"quant_method": "mxfp4"})");
  Named packed;
};

TEST_F(Mxfp4, HasTheLogitsOfTheValuesAndStaysMapped) {
  Decoder decoder = open("published");
  EXPECT_EQ(four_bit_linears(decoder), 2 * 2 * 4);
  decoder.visit_linears([&](Linear& linear) {
    if (!dynamic_cast<Nf4Weight*>(&linear.weight())) return;
    for (const Tensor* stored : linear.weight().storage()) EXPECT_FALSE(stored->writable());
  });
  EXPECT_LT(largest_difference(logits(open("published")), logits(open("plain"))), 1e-5);
}

TEST_F(Mxfp4, IsMergedAndExportedAsPlainTensors) {
  write_plain("published", "back");
  const CheckpointDir back(directory / "back"), plain(directory / "plain");
  ASSERT_EQ(back.names(), plain.names());
  for (const std::string& name : plain.names()) EXPECT_TRUE(same_bytes(back.at(name), plain.at(name))) << name;
}

TEST_F(Mxfp4, IsSavedAsItWasRead) {
  Decoder decoder = open("published");
  const CheckpointDir file(directory / "published");
  size_t seen = 0;
  for (const NamedTensor& tensor : state_dict(decoder)) {
    if (tensor.value.dtype() != DType::u8) continue;
    ++seen;
    EXPECT_EQ(tensor.value.shape(), file.at(tensor.name).shape());
    EXPECT_TRUE(same_bytes(tensor.value, file.at(tensor.name))) << tensor.name;
  }
  EXPECT_EQ(seen, 2u * 2 * 2);
}

TEST_F(Mxfp4, PartsThatDoNotFitAreRefused) {
  const auto with = [&](const std::string& name, const Tensor& instead) {
    Named changed;
    for (const auto& [key, tensor] : packed) {
      if (key != name) changed.emplace_back(key, tensor);
      if (key == name && instead) changed.emplace_back(key, instead);
    }
    write(directory / "changed", changed, published);
    return refusal("changed");
  };
  const std::string down = "model.layers.1.mlp.experts.down_proj";
  const auto zeros = [&](Shape shape, DType dtype) { return Tensor::zeros(pool, std::move(shape), dtype); };
  EXPECT_THAT(with(down + "_scales", {}), HasSubstr("lacks its part " + down + "_scales"));
  EXPECT_THAT(with(down + "_scales", zeros({4, 32, 2}, DType::u8)), HasSubstr("not u8 [4, 32, 1] as its blocks need"));
  EXPECT_THAT(with(down + "_scales", zeros({4, 32, 1}, DType::f32)), HasSubstr("is f32 [4, 32, 1], not u8"));
  EXPECT_THAT(with(down + "_blocks", zeros({4, 32, 16}, DType::u8)), HasSubstr("[experts, outputs, inputs / 32, 16]"));
  EXPECT_THAT(with(down + "_blocks", zeros({3, 32, 1, 16}, DType::u8)), HasSubstr("not u8 [3, 32, 1]"));
  EXPECT_THAT(with(down + "_blocks", {}), HasSubstr(down));
}

TEST_F(Mxfp4, ExpertsThatAreNotThoseOfTheConfigAreRefused) {
  std::string other = published;
  const std::string width = R"("intermediate_size": 32)";
  other.replace(other.find(width), width.size(), R"("intermediate_size": 64)");
  write(directory / "other", packed, other);
  EXPECT_THAT(refusal("other"), HasSubstr("is an MXFP4 tensor [4, 64, 32], config.json makes it [4, 128, 32]"));
}

TEST_F(Mxfp4, IsNotQuantizedAgain) {
  EXPECT_THROW(quantize_model(directory / "published", directory / "out", {}, rank.context()), UsageError);
  const QuantizeOnLoad how{};
  EXPECT_EQ(logits(open("published", how)), logits(open("published")));
}

class Bnb4BitExperts : public Experts4Bit, public ::testing::WithParamInterface<const char*> {};

TEST_P(Bnb4BitExperts, AreWrittenAsTheyAreMadeOnTheWay) {
  write_mixture(directory / "model", GetParam(), rank.context());
  for (const bool double_quant : {true, false}) {
    QuantizeModelOptions options;
    options.codec.double_quant = double_quant;
    options.replace = Replace::anything;
    const QuantizeModelReport report = quantize_model(directory / "model", directory / "out", options, rank.context());
    const CheckpointDir written(directory / "out");
    for (const std::string& name : written.names()) {
      if (name.find("experts") == std::string::npos || name.ends_with("_bias")) continue;
      if (name.ends_with("absmax")) continue;
      EXPECT_TRUE(name.find("quant") != std::string::npos || written.at(name).dtype() == DType::u8) << name;
    }
    const QuantizeOnLoad how{options.codec, {}};
    const std::vector<float> on_the_way = logits(open("model", how));
    EXPECT_EQ(logits(open("out")), on_the_way);
    EXPECT_GT(largest_difference(logits(open("model")), on_the_way), 1e-3);
    Decoder decoder = open("out");
    const bool fused = !decoder.config().names.block.experts.fused_gate_up.empty();
    EXPECT_EQ(four_bit_linears(decoder) - report.quantized, fused ? 2 * 2 * (4 - 1) : 0);
    write_plain("out", "plain");
    EXPECT_LT(largest_difference(logits(open("plain")), on_the_way), 1e-4);
  }
}

TEST_P(Bnb4BitExperts, StayAsTheyAreWhereTheyAreSkipped) {
  write_mixture(directory / "model", GetParam(), rank.context());
  QuantizeModelOptions options;
  options.skip_modules = {"lm_head", ".*experts", ".*put_linear"};
  quantize_model(directory / "model", directory / "out", options, rank.context());
  Decoder decoder = open("out"), on_the_way = open("model", QuantizeOnLoad{options.codec, options.skip_modules});
  decoder.visit_linears([&](Linear& linear) {
    const bool expert = expert_part(decoder.config(), linear.name()).has_value();
    EXPECT_TRUE(!expert || !dynamic_cast<Nf4Weight*>(&linear.weight())) << linear.name();
  });
  EXPECT_EQ(four_bit_linears(decoder), four_bit_linears(on_the_way));
}

TEST_P(Bnb4BitExperts, PackedTextsAndThreadsChangeNothing) {
  write_mixture(directory / "model", GetParam(), rank.context());
  const QuantizeOnLoad how{};
  const Sample texts[] = {{.ids = {1, 5, 9, 20, 33}, .labels = {1, 5, 9, 20, 33}},
                          {.ids = {2, 7, 40, 11, 3, 8, 8}, .labels = {2, 7, 40, 11, 3, 8, 8}}};
  Decoder decoder = open("model", how);
  std::vector<float> alone;
  for (const Sample& text : texts) {
    const std::vector<float> own = all_logits(decoder, make_batch({&text, 1}, pool), rank.step());
    alone.insert(alone.end(), own.begin(), own.end());
  }
  const Batch packed = make_batch(texts, pool);
  EXPECT_LT(largest_difference(all_logits(decoder, packed, rank.step()), alone), 1e-4);

  AdapterOptions options;
  options.r = 2;
  options.init_lora_weights = LoraInit::random;
  options.target_modules.names = {"q_proj"};
  const ExpertNames& names = decoder.config().names.block.experts;
  options.target_parameters = {names.peft_gate_up, names.peft_down};
  attach_adapter(decoder, options, rank.context());
  std::vector<std::vector<float>> gradients;
  const int before = threads();
  for (const int count : {1, 2, 3}) {
    set_threads(count);
    std::vector<float>& all = gradients.emplace_back();
    decoder.visit([](Parameter& parameter) {
      if (parameter.trainable) parameter.gradient.zero();
    });
    all.push_back(static_cast<float>(decoder.loss_sum_and_gradients(packed, rank.step(), 1)));
    decoder.visit([&](Parameter& parameter) {
      if (!parameter.trainable) return;
      const std::span<const float> values = parameter.gradient.span<const float>();
      all.insert(all.end(), values.begin(), values.end());
    });
  }
  set_threads(before);
  EXPECT_EQ(gradients[1], gradients[0]);
  EXPECT_EQ(gradients[2], gradients[0]);
}

// Touching what mprotect took away would end the test.
TEST_F(Experts4Bit, PagesOfExpertsThatNoTokenChoseAreNotTouched) {
  std::string config = mixture_config("gpt_oss");
  const std::string narrow = R"("intermediate_size": 32)";
  config.replace(config.find(narrow), narrow.size(), R"("intermediate_size": 512)");
  Decoder result = random_decoder(parse_decoder_config(config, "test"), 3, rank.context());
  result.visit([](Parameter& parameter) {  // experts 1 and 2 for everyone
    if (!parameter.name.ends_with("mlp.router.bias")) return;
    for (const size_t chosen : {1, 2}) parameter.value.span<float>()[chosen] = 1e3f;
  });
  write_model(directory / "model", result, config);
  quantize_model(directory / "model", directory / "nf4", {}, rank.context());
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  for (const char* model : {"model", "nf4"}) {
    Decoder decoder = open(model);
    AdapterOptions options;
    options.target_modules.names = {"q_proj"};
    attach_adapter(decoder, options, rank.context());
    std::vector<std::pair<void*, size_t>> taken;
    decoder.visit_linears([&](Linear& linear) {
      const std::optional<ExpertPart> part = expert_part(decoder.config(), linear.name());
      if (!part || part->expert == 1 || part->expert == 2) return;
      for (const Tensor* tensor : linear.weight().storage()) {
        const size_t own = tensor->bytes() / 4;
        const auto first = reinterpret_cast<uintptr_t>(tensor->raw()) + static_cast<size_t>(part->expert) * own;
        const uintptr_t begin = (first + page - 1) / page * page, end = (first + own) / page * page;
        if (begin >= end) continue;
        taken.emplace_back(reinterpret_cast<void*>(begin), end - begin);
        ASSERT_EQ(mprotect(taken.back().first, end - begin, PROT_NONE), 0);
      }
    });
    EXPECT_GE(taken.size(), 2u * 2 * 2) << model;
    const Sample text{.ids = {1, 5, 9, 20, 33, 2, 7}, .labels = {1, 5, 9, 20, 33, 2, 7}};
    for (const Recompute recompute : {Recompute::none, Recompute::block}) {
      decoder.set_recompute(recompute);
      EXPECT_GT(decoder.loss_sum_and_gradients(make_batch({&text, 1}, pool), rank.step(), 1), 0) << model;
    }
    for (const auto& [begin, size] : taken) ASSERT_EQ(mprotect(begin, size, PROT_READ), 0);
  }
}

// Pages of a tensor that this process has mapped, of those that are its own.
int64_t mapped_pages(const Tensor& tensor) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), first = reinterpret_cast<uintptr_t>(tensor.raw());
  const uintptr_t begin = (first + page - 1) / page, end = (first + tensor.bytes()) / page;
  const int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  int64_t mapped = 0;
  for (uintptr_t at = begin; at < end; ++at) {
    uint64_t entry = 0;
    EXPECT_EQ(pread(file, &entry, sizeof entry, static_cast<off_t>(at * sizeof entry)), ssize_t{sizeof entry});
    mapped += static_cast<int64_t>(entry >> 63);
  }
  close(file);
  return mapped;
}

// One tensor for every expert, and one for all of them.
TEST_F(Experts4Bit, PagesOfExpertsAreLeftAfterTheirPass) {
  for (const char* type : {"qwen3_moe", "gpt_oss"}) {
    std::string config = mixture_config(type);
    const std::string narrow = R"(intermediate_size": 32)";
    for (size_t at = 0; (at = config.find(narrow, at)) != std::string::npos; at += narrow.size()) {
      config.replace(at, narrow.size(), R"(intermediate_size": 2048)");
    }
    Decoder result = random_decoder(parse_decoder_config(config, "test"), 3, rank.context());
    write_model(directory / type, result, config);
    quantize_model(directory / type, directory / "nf4", {}, rank.context());
    for (const std::string model : {type, "nf4"}) {
      Decoder decoder = open(model);
      AdapterOptions options;
      options.target_modules.names = {"q_proj"};
      attach_adapter(decoder, options, rank.context());
      std::vector<Sample> texts(5);  // as many tokens as a layer's weights are left after
      for (size_t i = 0; i < texts.size(); ++i) {
        for (size_t t = 0; t < 60; ++t) texts[i].ids.push_back(static_cast<int32_t>((7 * i + t * t) % 40));
        texts[i].labels = texts[i].ids;
      }
      const Batch batch = make_batch(texts, pool);
      const auto pages = [&](Recompute recompute) {
        decoder.set_recompute(recompute);
        decoder.loss_sum_and_gradients(batch, rank.step(), 1);
        int64_t mapped = 0;
        decoder.visit_linears([&](Linear& linear) {
          if (!expert_part(decoder.config(), linear.name()) || linear.weight().matrix() > 0) return;
          for (const Tensor* tensor : linear.weight().storage()) mapped += mapped_pages(*tensor);
        });
        return mapped;
      };
      // What lies beside an expert in the file and is read later may bring pages around it back.
      const int64_t kept = pages(Recompute::none), left = pages(Recompute::block);
      EXPECT_LT(left, kept / 4) << type << " " << model << " " << kept;
    }
    std::filesystem::remove_all(directory / "nf4");
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Bnb4BitExperts, ::testing::ValuesIn(kMixtures),
                         [](const auto& result) { return std::string(result.param); });

}  // namespace
}  // namespace nibble
