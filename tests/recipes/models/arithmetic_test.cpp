// What a run computes in: what it names, else what it began with, else what this CPU is faster at.

#include "nibble/recipes/models/arithmetic.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "nibble/core/comm/local_rank.h"
#include "nibble/core/ops/cpu/peak_flops.h"
#include "nibble/tests/temporary_directory.h"

namespace nibble {
namespace {

using nlohmann::json;
using ops::Bf16Products;

class Arithmetic : public testing::Test {
 protected:
  ~Arithmetic() override { ops::set_bf16_products(before_); }

  void begin_run(const json& model) { test::write_bytes(directory_ / "recipe.json", json{{"model", model}}.dump()); }

  ModelRecipe chosen(const json& model, const std::string& resume = "auto") {
    json recipe = {{"model", {{"path", "none"}}},
                   {"data", {{"train", "none"}}},
                   {"adapter", {{"r", 4}}},
                   {"output", {{"dir", directory_.path().string()}, {"resume", resume}}}};
    if (!model.is_null()) recipe["model"].update(model);
    messages_.clear();
    Observer observer;
    observer.on_message = [this](const std::string& line) { messages_ += line + "\n"; };
    LocalRank rank;
    const Recipe result = with_arithmetic(parse_recipe(recipe.dump(), "recipe"), rank.context(), observer);
    EXPECT_EQ(ops::bf16_products(), result.model.products());
    EXPECT_EQ(with_arithmetic(parse_recipe(to_json(result), "recipe"), rank.context(), {}).model.products(),
              result.model.products())
        << "the recipe that the run leaves has other arithmetic";
    return result.model;
  }

  const Bf16Products before_ = ops::bf16_products();
  test::TemporaryDirectory directory_;
  std::string messages_;
};

TEST_F(Arithmetic, ANamedDtypeIsComputedByItsOwnInstructions) {
  EXPECT_EQ(chosen({{"compute_dtype", "bf16"}}).products(), Bf16Products::bf16);
  begin_run({{"compute_dtype", "bf16"}, {"bf16_products", "f32"}});
  EXPECT_EQ(chosen({{"compute_dtype", "bf16"}}).products(), Bf16Products::bf16);
  EXPECT_EQ(chosen({{"compute_dtype", "f32"}}).dtype(), DType::f32);
  EXPECT_EQ(chosen({{"compute_dtype", "bf16"}, {"bf16_products", "f32"}}).products(), Bf16Products::f32);
  EXPECT_EQ(messages_, "");
}

TEST_F(Arithmetic, ANewRunTakesWhatThisCpuIsFasterAtAndSaysSo) {
  const ModelRecipe model = chosen({});
  if (model.dtype() != DType::bf16) GTEST_SKIP() << "this CPU has no bf16 instructions";
  EXPECT_EQ(model.bf16_products, faster_bf16_products());
  EXPECT_EQ(messages_.empty(), model.products() == Bf16Products::bf16) << messages_;
  EXPECT_EQ(chosen({{"compute_dtype", "int8"}}).bf16_products, faster_bf16_products());
  for (int again = 0; again < 3; ++again) EXPECT_EQ(faster_bf16_products(), model.products());
}

TEST_F(Arithmetic, ARunGoesOnAsItBeganOnWhateverCpu) {
  for (const Bf16Products products : {Bf16Products::bf16, Bf16Products::f32}) {
    begin_run({{"compute_dtype", "bf16"}, {"bf16_products", products == Bf16Products::f32 ? "f32" : "bf16"}});
    for (const char* resume : {"auto", "here"}) {
      const ModelRecipe model = chosen({}, resume == std::string("here") ? directory_.path().string() : resume);
      EXPECT_EQ(model.compute_dtype, ComputeDtype::bf16);
      EXPECT_EQ(model.products(), products);
    }
  }
  begin_run({{"compute_dtype", "bf16"}});  // before there was a choice, or with the dtype named
  EXPECT_EQ(chosen({}).products(), Bf16Products::bf16);
  begin_run({{"compute_dtype", "f32"}});
  EXPECT_EQ(chosen({}).dtype(), DType::f32);
  begin_run({{"compute_dtype", "int8"}});
  EXPECT_EQ(chosen({{"compute_dtype", "int8"}}).products(), Bf16Products::bf16);
}

TEST_F(Arithmetic, ARunThatStartsAfreshLooksAtNothing) {
  begin_run({{"compute_dtype", "f32"}});
  EXPECT_EQ(chosen({}, "never").dtype(), ModelRecipe().dtype());
  test::write_bytes(directory_ / "recipe.json", "{");
  EXPECT_EQ(chosen({}).dtype(), ModelRecipe().dtype()) << "for the run to refuse";
}

TEST_F(Arithmetic, OnlyProductsInF32AreASettingOfTheRun) {
  const auto settings = [&](const std::string& products) {
    return fixed_settings(parse_recipe("{}", "recipe",
                                       {"model.path=m", "data.train=d", "output.dir=o", "model.compute_dtype=bf16",
                                        "model.bf16_products=" + products}));
  };
  EXPECT_EQ(settings("bf16"), settings("null")) << "a checkpoint of before the key could not go on";
  EXPECT_NE(settings("f32"), settings("bf16"));
}

}  // namespace
}  // namespace nibble
