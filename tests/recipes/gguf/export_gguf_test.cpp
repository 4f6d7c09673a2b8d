#include "nibble/recipes/gguf/export_gguf.h"

#include <gtest/gtest.h>

#include "nibble/core/base/error.h"
#include "nibble/core/comm/local_rank.h"
#include "nibble/core/io/gguf/gguf.h"
#include "nibble/core/text/tokenizers/tokenizer.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

class ExportGguf : public ::testing::Test {
 protected:
  fs::path exported(const fs::path& model, const fs::path& adapter, bool adapter_only, bool tokenizer) {
    GgufRequest request;
    request.model = model.string();
    request.adapter = adapter.string();
    request.adapter_only = adapter_only;
    request.out = (directory_ / ("file-" + std::to_string(count_++) + ".gguf")).string();
    request.type = "f32";
    request.tokenizer = tokenizer;
    export_gguf(request, rank_.context());
    return request.out;
  }
  Tensor all(const GgufFile& file, const std::string& name) {
    const GgufTensor* tensor = file.find(name);
    if (tensor == nullptr) throw std::runtime_error(name + " is not there");
    return file.rows(*tensor, 0, tensor->shape.at(0), rank_.context().pool);
  }

  LocalRank rank_{1};
  test::TemporaryDirectory directory_;
  int count_ = 0;
};

TEST_F(ExportGguf, HasTheChatTemplateAndGivesTheIdsOfTheTokenizer) {
  const std::filesystem::path asset = test::data_path("stories-llama");
  const fs::path model = directory_ / "model";
  fs::create_directory(model);  // not with the asset's permissions
  fs::copy(asset, model);
  const std::string chat = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}";
  test::write_bytes(model / "chat_template.jinja", chat);
  const fs::path result = exported(model, "", false, true);
  EXPECT_EQ(GgufFile(result.string()).text("tokenizer.chat_template"), chat);
  const auto of_model = load_tokenizer(model), of_file = load_tokenizer(result);
  for (const char* text : {"Once upon a time", "Zahlen 12345, \xC3\x9Cml\xC3\xA4ute\n", "\xE6\x97\xA5\xE6\x9C\xAC"})
    EXPECT_EQ(of_file->encode(text), of_model->encode(text)) << text;
  EXPECT_EQ(of_file->eos_id(), of_model->eos_id());
}

TEST_F(ExportGguf, ARefusalNamesTheFileTheTypeAndTheKnownOnes) {
  fs::create_directory(directory_ / "opt");
  test::write_bytes(directory_ / "opt/config.json",
                    R"({"model_type": "opt", "vocab_size": 8, "hidden_size": 4, "ffn_dim": 4, "num_hidden_layers": 1,
                        "num_attention_heads": 1, "max_position_embeddings": 8, "word_embed_proj_dim": 4})");
  try {
    exported(directory_ / "opt", fs::path(kSourceDir) / "tests/oracles/results/peft_llama/adapter", true, false);
    FAIL() << "nothing was thrown";
  } catch (const UsageError& error) {
    const std::string output = error.what();
    for (const char* part : {"config.json: ", "the form of opt in llama.cpp", "known are llama"})
      EXPECT_NE(output.find(part), std::string::npos) << output;
  }
}

// The base with this adapter is what llama.cpp computes; tests/oracles/gguf_llama_cpp.py lets it.
TEST_F(ExportGguf, AnAdapterAddsWhatMergingAdds) {
  const fs::path oracle = fs::path(kSourceDir) / "tests/oracles/results/peft_llama";
  const fs::path peft = oracle / "adapter";
  const GgufFile base(exported(oracle / "base", "", false, false).string());
  const GgufFile merged(exported(oracle / "base", peft, false, false).string());
  const GgufFile adapter(exported(oracle / "base", peft, true, false).string());
  EXPECT_EQ(adapter.text("general.type"), "adapter");
  const double alpha = adapter.number("adapter.lora.alpha").value();
  int matrices = 0;
  for (const GgufTensor& tensor : adapter.tensors()) {
    if (!tensor.name.ends_with(".lora_b")) continue;
    ++matrices;
    const std::string name = tensor.name.substr(0, tensor.name.size() - 7);
    const Tensor b = all(adapter, tensor.name), a = all(adapter, name + ".lora_a");
    const Tensor before = all(base, name), after = all(merged, name);
    const int64_t rows = b.dim(0), r = b.dim(1), columns = a.dim(1);
    ASSERT_EQ(before.shape(), (Shape{rows, columns})) << name;
    const auto at = [](const Tensor& t, int64_t row, int64_t column) {
      return static_cast<double>(t.data<const float>()[row * t.dim(1) + column]);
    };
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        double sum = 0;
        for (int64_t k = 0; k < r; ++k) sum += at(b, row, k) * at(a, k, column);
        ASSERT_NEAR(at(after, row, column) - at(before, row, column), alpha / static_cast<double>(r) * sum, 1e-6)
            << name << " " << row << " " << column;
      }
    }
  }
  EXPECT_EQ(matrices, 6) << "q, v and down of two layers";
}

}  // namespace
}  // namespace nibble
