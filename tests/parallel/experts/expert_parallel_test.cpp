// Experts on several ranks against one rank that has all: the same bits, in every form that experts have.

#include "nibble/parallel/experts/expert_parallel.h"

#include <map>
#include <mutex>

#include "nibble/adapters/attach.h"
#include "nibble/core/base/error.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/models/load.h"
#include "nibble/tests/core/nn/feed_forward/expert_kinds.h"

namespace nibble {
namespace {

using namespace nibble::test;

/// Gradients by name, of a tensor of all experts those of the experts here.
struct Gradients {
  double loss = 0;
  std::map<std::string, std::vector<float>> of;
};

/// Every weight, adapters on the tensors of all experts, or on the Linears of single ones.
enum class Trained : uint8_t { everything, adapters, single_adapters };

struct ExpertJob {
  DecoderConfig config;
  Trained trained;
  DType dtype;
  int64_t r = 4;
};

/// As adapters were saved when every expert had Linears of its own.
PeftAdapter single_adapters(const ExpertJob& job) {
  LocalRank rank;
  PeftAdapter adapter;
  adapter.options.r = job.r;
  MemoryPool pool;
  plan_decoder(job.config, rank.context()).visit_linears([&](Linear& linear) {
    const std::string& name = linear.name();
    if (name.find(".experts.") == std::string::npos && !name.ends_with("q_proj")) return;
    const auto add = [&](const std::string& end, const Shape& shape) {
      const std::shared_ptr<Parameter> drawn = random_parameter(job.config, 5, name + end, shape, pool);
      adapter.tensors.emplace(name + end, drawn->value.clone(pool));
    };
    add(".lora_A.weight", {job.r, linear.in_features()});
    add(".lora_B.weight", {linear.out_features(), job.r});
    adapter.options.target_modules.names.push_back(name);
  });
  return adapter;
}

Gradients gradients_of_batch(const ExpertJob& job, uint64_t number, Communicator& comm, const ExpertExchange* experts,
                             MemoryPool& pool) {
  RankContext rank{comm, pool, 1, 7};
  const ParameterMaker parameter = [&](const std::string& name, const Shape& shape) {
    return random_parameter(job.config, 1, name, shape, pool);
  };
  Decoder decoder(job.config, dense_maker(job.config, parameter), parameter, rank, {}, nullptr, experts);
  if (job.trained == Trained::single_adapters) {
    load_adapter(decoder, single_adapters(job), true, rank);
  } else if (job.trained == Trained::adapters) {
    AdapterOptions options;
    options.r = job.r;
    options.init_lora_weights = LoraInit::random;
    options.target_parameters = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"};
    options.target_modules.names = {"q_proj"};
    options.modules_to_save = {"post_attention_layernorm"};  // whose gradient is that of the experts' input in f32
    attach_adapter(decoder, options, rank);
  } else {
    make_trainable(decoder, rank);
  }
  const StepContext step{.rank = rank, .compute_dtype = job.dtype, .training = true, .step = 1};
  Gradients found;
  found.loss = decoder.loss_sum_and_gradients(documents(number, pool), step, 1);
  decoder.visit([&](Parameter& trained) {
    if (!trained.trainable) return;
    const std::span<const float> values = trained.gradient.span<const float>();
    found.of[trained.name].assign(values.begin(), values.end());
  });
  return found;
}

// As a tree over [begin, end).
std::vector<float> sum_of(const std::vector<Gradients>& all, const std::string& name, size_t begin, size_t end) {
  if (end - begin == 1) return all[begin].of.at(name);
  const size_t middle = begin + (end - begin) / 2;
  std::vector<float> sum = sum_of(all, name, begin, middle);
  const std::vector<float> right = sum_of(all, name, middle, end);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += right[i];
  return sum;
}

void expect_bits_of_one_rank(const ExpertJob& job, int ranks) {
  SelfComm alone;
  MemoryPool pool;
  std::vector<Gradients> one, spread(static_cast<size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    one.push_back(gradients_of_batch(job, static_cast<uint64_t>(r), alone, nullptr, pool));
  }
  run_on_threads(ranks, [&](Communicator& comm) {
    set_threads(1);
    MemoryPool own;
    const auto experts = expert_parallel(job.config, comm, GradientSum::tree, own);
    const auto r = static_cast<size_t>(comm.rank());
    spread[r] = gradients_of_batch(job, r, comm, experts.get(), own);
  });
  const size_t experts = static_cast<size_t>(job.config.experts->experts);
  size_t compared = 0;
  for (const auto& [name, whole] : one.front().of) {
    const bool of_experts = name.find(".experts.") != std::string::npos;
    if (!of_experts) {
      for (size_t r = 0; r < spread.size(); ++r) EXPECT_EQ(spread[r].of.at(name), one[r].of.at(name)) << name;
      continue;
    }
    const std::vector<float> want = sum_of(one, name, 0, one.size());
    // Whole on every rank, which adds what its experts give; or some matrices of it; or one rank's alone.
    std::vector<float> got;
    for (size_t r = 0; r < spread.size(); ++r) {
      const auto found = spread[r].of.find(name);
      if (found == spread[r].of.end()) continue;
      if (got.empty() || found->second.size() < want.size()) {
        got.insert(got.end(), found->second.begin(), found->second.end());
      } else {
        for (size_t i = 0; i < got.size(); ++i) got[i] += found->second[i];
      }
    }
    EXPECT_EQ(got, want) << name;
    compared += experts;
  }
  EXPECT_GT(compared, 0u);
  for (size_t r = 0; r < spread.size(); ++r) EXPECT_EQ(spread[r].loss, one[r].loss);
}

class ExpertParallel : public testing::TestWithParam<Trained> {};

// In bf16 an update of an odd rank is a product of its own; without instructions for bf16 every one is.
TEST_P(ExpertParallel, HasTheBitsOfOneRank) {
  for (const DecoderConfig& config : all_kinds()) {
    const bool fused = !config.names.block.experts.fused_gate_up.empty();
    if (GetParam() == Trained::single_adapters && fused) continue;  // there is no such adapter
    for (const auto& [dtype, r] : {std::pair(DType::f32, 4), {DType::bf16, 4}, {DType::bf16, 3}}) {
      for (const int ranks : {2, 3, 4}) {
        SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::string(dtype_name(dtype)) + ", " + std::to_string(r));
        expect_bits_of_one_rank({config, GetParam(), dtype, r}, ranks);
      }
    }
  }
}

std::string name_of(const testing::TestParamInfo<Trained>& which) {
  const char* const names[] = {"Everything", "Adapters", "SingleAdapters"};
  return names[static_cast<size_t>(which.param)];
}

INSTANTIATE_TEST_SUITE_P(Trained, ExpertParallel,
                         testing::Values(Trained::everything, Trained::adapters, Trained::single_adapters), name_of);

DecoderConfig fused_experts(int64_t hidden, int64_t experts) {
  return parse_decoder_config(R"({"model_type": "gpt_oss", "hidden_size": 32, "num_hidden_layers": 1,
      "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 48, "num_experts_per_tok": 2,
      "max_position_embeddings": 64, "tie_word_embeddings": false, "intermediate_size": )" +
                                  std::to_string(hidden) + R"(, "num_local_experts": )" + std::to_string(experts) + "}",
                              "test");
}

TEST(ExpertBlocks, AreRefusedOnlyWhereRanksWouldSplitOne) {
  const auto refusal = [](const DecoderConfig& config, int64_t ranks, const std::string& trained) -> std::string {
    try {
      check_expert_blocks(config, ranks, [&](const std::string& name) { return name.ends_with(trained); });
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  // An expert's down_proj has 28 * 32 values, three and a half blocks; its gate_up_proj has seven.
  const DecoderConfig eight = fused_experts(28, 8), six = fused_experts(28, 6);
  EXPECT_EQ(refusal(eight, 2, ""), "");
  EXPECT_EQ(refusal(eight, 4, ""), "");
  EXPECT_EQ(refusal(eight, 8, ""),
            "parallel.experts: 8 ranks would split a block of 256 values of adamw8bit's state: an expert has 896 in "
            "model.layers.0.mlp.experts.down_proj; use adamw, or parallel.shard");
  EXPECT_NE(refusal(six, 2, ""), "");
  EXPECT_NE(refusal(six, 2, "down_proj"), "");
  EXPECT_EQ(refusal(six, 2, "gate_up_proj"), "");
  EXPECT_EQ(refusal(fused_experts(2, 6), 2, ""), "") << "so small a tensor has its state in f32";
  EXPECT_EQ(refusal(mixtral(), 2, ""), "") << "every expert has tensors of its own";
}

TEST(ExpertRoute, SaysWhatGoesAndComes) {
  run_on_threads(2, [](Communicator& comm) {
    MemoryPool pool;
    DecoderConfig config = mixtral();  // 5 experts: two here, three there
    const auto experts = expert_parallel(config, comm, GradientSum::tree, pool);
    const std::vector<int64_t> counts =
        comm.rank() == 0 ? std::vector<int64_t>{1, 0, 0, 2, 1} : std::vector<int64_t>{0, 0, 3, 0, 0};
    const ExpertRoute route = experts->route(counts);
    if (comm.rank() == 0) {
      EXPECT_EQ(route.sent, (std::vector<int64_t>{0, 1, 4}));
      EXPECT_EQ(route.received, (std::vector<int64_t>{0, 1, 1}));
      EXPECT_EQ(route.counts, (std::vector<std::vector<int64_t>>{{1, 0}, {0, 0}}));
    } else {
      EXPECT_EQ(route.sent, (std::vector<int64_t>{0, 0, 3}));
      EXPECT_EQ(route.received, (std::vector<int64_t>{0, 3, 6}));
      EXPECT_EQ(route.counts, (std::vector<std::vector<int64_t>>{{0, 2, 1}, {3, 0, 0}}));
    }
    Tensor rows = Tensor::zeros(pool, {route.sent.back(), 2}, DType::f32);
    for (int64_t i = 0; i < rows.numel(); ++i) rows.data<float>()[i] = static_cast<float>(10 * comm.rank() + i);
    const Tensor there = experts->send("rows", rows, route);
    EXPECT_EQ(there.dim(0), route.received.back());
    const Tensor back = experts->send_back("rows back", there, route);
    ASSERT_EQ(back.shape(), rows.shape());
    EXPECT_EQ(std::memcmp(back.raw(), rows.raw(), rows.bytes()), 0);
  });
}

}  // namespace
}  // namespace nibble
