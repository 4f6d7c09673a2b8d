// A frozen weight that is not finite: what follows is not finite on any rank, and all of them name the weight.

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "nibble/tests/parallel/own_model.h"

namespace nibble {
namespace {

using namespace nibble::test;

/// One element of a tensor in f32 is not a number any more.
void spoil(const fs::path& file, const std::string& tensor, size_t element) {
  std::string bytes = read_bytes(file);
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  const json place = json::parse(bytes.substr(sizeof header, header)).at(tensor).at("data_offsets").at(0);
  const float nan = NAN;
  std::memcpy(&bytes.at(sizeof header + header + place.get<size_t>() + element * sizeof nan), &nan, sizeof nan);
  write_bytes(file, bytes);
}

TEST_F(OwnModel, AFrozenWeightThatIsNotFiniteIsNamedWhicheverRankHasIt) {
  spoil(base_ / "model.safetensors", "model.layers.3.mlp.up_proj.weight", 5);
  json wanted = own_recipe(base_, 12);
  wanted["adapter"] = {{"r", 2}, {"target_modules", {"q_proj"}}};
  const std::vector<std::pair<int, json>> layouts = {{1, json::object()},
                                                     {2, {{"replicate", 2}}},
                                                     {2, {{"shard", 2}}},
                                                     {2, {{"pipeline", 2}}},
                                                     {4, {{"pipeline", 2}, {"shard", 2}}}};
  for (const auto& [ranks, parallel] : layouts) {
    wanted["parallel"] = parallel;
    std::string error;
    try {
      run(wanted, ranks, parallel.dump());
    } catch (const NumericError& thrown) {
      error = thrown.what();
    }
    EXPECT_THAT(error, testing::StartsWith("model.layers.3.mlp.up_proj.weight, element 5 of 2048, is nan: steps 1 to 3 "
                                           "could not be used"))
        << parallel;
  }
}

}  // namespace
}  // namespace nibble
