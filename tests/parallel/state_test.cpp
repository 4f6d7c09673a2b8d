// Fill, save, zero, load: every rank fills what it holds with numbers of their place in the whole model, all ranks save
// together, and the numbers come back under the same and under other layouts.

#include <gtest/gtest.h>

#include "nibble/adapters/attach.h"
#include "nibble/core/base/parallel.h"
#include "nibble/parallel/comm/thread_comm.h"
#include "nibble/parallel/parallelize.h"
#include "nibble/parallel/tensor/tensor_parallel.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/core/models/golden.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using namespace nibble::test;
namespace fs = std::filesystem;

/// What element (i, j) of the global tensor `name` is filled with; no two of a tensor are alike.
float mark(const std::string& name, int64_t i, int64_t j) {
  int64_t sum = 0;
  for (char c : name) sum = (sum * 31 + c) % 97;
  return static_cast<float>(sum) + static_cast<float>(i * 1024 + j) / 65536.0f;
}

template <typename Call>
void each_element(const CheckpointSlice& slice, const Call& call) {
  const bool matrix = slice.value.rank() == 2;
  const int64_t rows = slice.value.dim(0), columns = matrix ? slice.value.dim(1) : 1;
  float* at = slice.value.data<float>();
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      call(*at++, mark(slice.name, i + slice.offset[0], j + (matrix ? slice.offset[1] : 0)));
    }
  }
}

/// Calls body(parallel model, its slices of the trained parameters) on the ranks of `shape`.
void on_ranks(const MeshShape& shape, bool adapter,
              const std::function<void(ParallelModel&, const std::vector<NamedTensor>&, RankContext&)>& body) {
  const fs::path model = std::string(kSourceDir) + "/tests/data/goldens/families/llama-0/model";
  run_on_threads(static_cast<int>(shape.ranks()), [&](Communicator& comm) {
    MemoryPool pool;
    RankContext rank{comm, pool, 1, 5};
    set_threads(1);
    const Mesh mesh(shape, comm);
    LoadOptions options;
    const auto tensor = tensor_parallel(read_decoder_config(model), mesh.tensor(), pool);
    options.sharding = tensor.get();
    Decoder decoder = load_decoder(model, rank, options);
    AdapterOptions lora;
    lora.r = 4;
    lora.target_modules.pattern = "all-linear";
    if (adapter) attach_adapter(decoder, lora, rank);
    ParallelModel parallel = parallelize(decoder, !adapter, {}, mesh, rank);
    std::vector<NamedTensor> values;
    for (const Parameter* parameter : parallel.parameters()) values.push_back({parameter->name, parameter->value});
    body(parallel, values, rank);
  });
}

const std::vector<MeshShape>& shapes() {
  static const std::vector<MeshShape> all = {{},
                                             {.replicate = 2},
                                             {.shard = 2},
                                             {.replicate = 2, .shard = 2},
                                             {.tensor = 2},
                                             {.tensor = 3},
                                             {.shard = 2, .tensor = 2}};
  return all;
}

class State : public testing::TestWithParam<bool> {};

TEST_P(State, FilledSavedZeroedAndLoadedUnderEveryLayout) {
  TemporaryDirectory directory;
  std::vector<std::pair<std::string, Shape>> all;  // of the whole model
  on_ranks({}, GetParam(), [&](ParallelModel&, const auto& values, RankContext&) {
    for (const NamedTensor& value : values) all.emplace_back(value.name, value.value.shape());
  });
  for (size_t from = 0; from < shapes().size(); ++from) {
    const fs::path saved = directory / std::to_string(from);
    on_ranks(shapes()[from], GetParam(), [&](ParallelModel& parallel, const auto& values, RankContext& rank) {
      for (const CheckpointSlice& slice : parallel.slicer()(values)) {
        each_element(slice, [](float& value, float mark) { value = mark; });
      }
      save_checkpoint(saved, TrainingState{}, parallel.written_slicer()(values), {}, rank.comm);
    });
    for (const MeshShape& to : {shapes()[from], shapes()[(from + 1) % shapes().size()], shapes().back()}) {
      on_ranks(to, GetParam(), [&](ParallelModel& parallel, const auto& values, RankContext&) {
        for (const NamedTensor& named : values) {
          Tensor value = named.value;
          value.zero();
        }
        const std::vector<CheckpointSlice> mine = parallel.slicer()(values);
        std::vector<CheckpointSlice> wanted = mine;  // and nothing of what other ranks have
        for (const auto& [name, shape] : all) {
          wanted.push_back({name, Tensor::planned(Shape(shape.size(), 0), DType::f32), shape, Shape(shape.size(), 0)});
        }
        load_checkpoint_tensors(saved / "step-0", wanted, {});
        int64_t seen = 0, wrong = 0, held = 0;
        for (const CheckpointSlice& slice : mine) {
          each_element(slice, [&](float value, float mark) { wrong += value != mark; });
          seen += slice.value.numel();
        }
        for (const NamedTensor& named : values) held += named.value.numel();
        EXPECT_EQ(wrong, 0);
        EXPECT_EQ(seen, held);
        EXPECT_GT(seen, 0);
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, State, testing::Bool(),
                         [](const auto& which) { return which.param ? "Adapters" : "FullModels"; });

}  // namespace
}  // namespace nibble
