#include "nibble/core/io/hub/checkpoint_dir.h"

#include <gmock/gmock.h>

#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::TemporaryDirectory;
using test::write_bytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

void write_shard(const fs::path& path, const std::vector<std::string>& names) {
  MemoryPool pool;
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const std::string& name : names) tensors.emplace_back(name, Tensor::zeros(pool, {2}, DType::f32));
  write_safetensors(path, tensors);
}

class Sharded : public ::testing::Test {
 protected:
  Sharded() {
    write_shard(directory / "one.safetensors", {"a", "b"});
    write_shard(directory / "two.safetensors", {"c"});
  }
  void index(const std::string& map) {
    write_bytes(directory / "model.safetensors.index.json", R"({"metadata": {}, "weight_map": {)" + map + "}}");
  }
  std::string refusal() {
    return error_of<InputError>([&] { CheckpointDir opened(directory.path()); });
  }
  TemporaryDirectory directory;
};

TEST_F(Sharded, TensorsAreFoundInTheirShards) {
  index(R"("c": "two.safetensors", "a": "one.safetensors", "b": "one.safetensors")");
  const CheckpointDir checkpoint(directory.path());
  EXPECT_THAT(checkpoint.names(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(checkpoint.total_bytes(), 24u);
  EXPECT_TRUE(checkpoint.find("c"));
  EXPECT_FALSE(checkpoint.find("d"));
  EXPECT_THAT(checkpoint.file_of("c"), HasSubstr("two.safetensors"));
  EXPECT_THAT(error_of<InputError>([&] { checkpoint.at("d"); }), HasSubstr("has no tensor \"d\""));
}

TEST(CheckpointDir, PartsStandForATensorThatIsSeveralModules) {
  const TemporaryDirectory directory;
  MemoryPool pool;
  const Tensor fused = Tensor::from<float>(pool, {3, 2}, std::vector<float>{0, 1, 2, 3, 4, 5});
  const std::vector<FusedTensor> parts = {{"mixer.in", {{"mixer.first", 1}, {"mixer.second", 2}}}};
  const auto write = [&](const std::vector<std::string>& names) {
    std::vector<std::pair<std::string, Tensor>> tensors;
    for (const std::string& name : names) tensors.emplace_back(name, fused);
    write_safetensors(directory / "model.safetensors", tensors);
  };
  write({"layers.0.mixer.in.weight", "layers.0.remixer.in.weight"});
  CheckpointDir checkpoint(directory.path());
  checkpoint.split(parts);
  EXPECT_THAT(checkpoint.names(),
              ElementsAre("layers.0.mixer.first.weight", "layers.0.mixer.second.weight", "layers.0.remixer.in.weight"));
  const Tensor second = checkpoint.at("layers.0.mixer.second.weight");
  EXPECT_EQ(second.shape(), (Shape{2, 2}));
  EXPECT_THAT(second.span<const float>(), ElementsAre(2, 3, 4, 5));
  EXPECT_EQ(checkpoint.total_bytes(), 48u);
  const std::vector<FusedTensor> wider = {{"remixer.in", {{"remixer.first", 4}}}};
  EXPECT_THAT(error_of<InputError>([&] { checkpoint.split(wider); }), HasSubstr("config.json makes it 4 rows"));
  write({"layers.0.mixer.in.weight", "layers.0.mixer.second.weight"});
  CheckpointDir both(directory.path());
  EXPECT_THAT(error_of<InputError>([&] { both.split(parts); }), HasSubstr("which is a part of it"));
}

TEST_F(Sharded, AMissingShardIsNamed) {
  index(R"("c": "three.safetensors")");
  EXPECT_THAT(refusal(), HasSubstr("three.safetensors: is missing"));
}

TEST_F(Sharded, ATensorThatIsInAnotherShardIsNamed) {
  index(R"("c": "one.safetensors", "a": "one.safetensors", "b": "one.safetensors")");
  EXPECT_THAT(refusal(), HasSubstr("one.safetensors: lacks tensor \"c\""));
}

TEST_F(Sharded, ATensorThatTheIndexDoesNotListIsNamed) {
  index(R"("a": "one.safetensors")");
  EXPECT_THAT(refusal(), HasSubstr("has tensor \"b\", which the index does not list"));
}

TEST_F(Sharded, ATensorInTwoShardsIsNamed) {
  write_shard(directory / "two.safetensors", {"b", "c"});
  index(R"("a": "one.safetensors", "c": "two.safetensors")");
  EXPECT_THAT(refusal(), HasSubstr("tensor \"b\", which is also in"));
}

TEST_F(Sharded, PathsOutOfTheDirectoryAreRefused) {
  for (const char* path : {"../one.safetensors", "/etc/passwd", "x/../../one.safetensors", "one\\u0000.safetensors"}) {
    index(R"("a": ")" + std::string(path) + R"(")");
    EXPECT_THAT(refusal(), HasSubstr("names a file outside its directory")) << path;
  }
}

TEST_F(Sharded, AnIndexWithoutMapIsRefused) {
  write_bytes(directory / "model.safetensors.index.json", "[]");
  EXPECT_THAT(refusal(), HasSubstr("has no weight_map"));
}

TEST_F(Sharded, ALinkOutOfTheDirectoryIsRefusedUnlessItsRootIsGiven) {
  TemporaryDirectory elsewhere;
  write_shard(elsewhere / "model.safetensors", {"a"});
  TemporaryDirectory model;
  fs::create_symlink(elsewhere / "model.safetensors", model / "model.safetensors");
  EXPECT_THAT(error_of<InputError>([&] { CheckpointDir opened(model.path()); }),
              HasSubstr("leads out of its directory"));
  EXPECT_EQ(CheckpointDir(model.path(), {elsewhere.path()}).names().size(), 1u);
}

TEST(CheckpointDir, LinksOfTheHuggingFaceCacheAreFollowed) {
  TemporaryDirectory cache;
  const fs::path model = cache / "models--org--name", snapshot = model / "snapshots" / "0123";
  fs::create_directories(model / "blobs");
  fs::create_directories(snapshot);
  write_shard(model / "blobs" / "abcd", {"a"});
  write_bytes(model / "blobs" / "ef01", "{}");
  fs::create_symlink("../../blobs/abcd", snapshot / "model.safetensors");
  fs::create_symlink("../../blobs/ef01", snapshot / "config.json");
  const CheckpointDir checkpoint(snapshot);
  EXPECT_EQ(checkpoint.names().size(), 1u);
  EXPECT_EQ(checkpoint.config_text(), "{}");
}

TEST(CheckpointDir, OpensARealModel) {
  const std::filesystem::path asset = test::data_path("stories-llama");
  const CheckpointDir checkpoint(asset);
  EXPECT_EQ(checkpoint.at("model.embed_tokens.weight").shape(), (Shape{512, 64}));
  EXPECT_THAT(checkpoint.config_text(), HasSubstr("LlamaForCausalLM"));
}

TEST(CheckpointDir, SaysWhatIsMissing) {
  TemporaryDirectory directory;
  EXPECT_THAT(error_of<InputError>([&] { CheckpointDir c(directory.path()); }),
              HasSubstr("has neither model.safetensors"));
  write_bytes(directory / "pytorch_model.bin", "");
  EXPECT_THAT(error_of<InputError>([&] { CheckpointDir c(directory.path()); }), HasSubstr("only pickled weights"));
  EXPECT_THAT(error_of<IoError>([&] { CheckpointDir c(directory / "none"); }), HasSubstr("no such directory"));
  write_shard(directory / "model.safetensors", {"a"});
  EXPECT_THAT(error_of<InputError>([&] { CheckpointDir(directory.path()).config_text(); }),
              HasSubstr("has no config.json"));
}

}  // namespace
}  // namespace nibble
