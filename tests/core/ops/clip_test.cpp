#include "nibble/core/ops/clip.h"

#include <fstream>
#include <sstream>

#include "nibble/core/ops/ref/clip.h"
#include "nibble/core/ops/softcap.h"
#include "nibble/tests/assets.h"
#include "nibble/tests/core/ops/op_test.h"

namespace nibble {
namespace {

using namespace test;

TEST(Clip, IsItsReferenceForwardAndBackward) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Tensor x = random_tensor({33, 21}, dtype, 1, 2), inside = Tensor::empty(pool(), {33, 21}, DType::u8);
    Tensor dx = random_tensor({33, 21}, dtype, 2);
    Values expected = values_of(x), gradient = values_of(dx);
    std::vector<uint8_t> seen(expected.size());
    ops::ref::clip(expected.data(), x.numel(), 1.5, seen.data());
    ops::ref::clip_backward(seen.data(), x.numel(), gradient.data());
    ops::clip(x, 1.5f, inside);
    ops::clip_backward(inside, dx);
    expect_close(x, expected, 0, 0, "clipped");
    expect_close(dx, gradient, 0, 0, "gradient");
    EXPECT_EQ(std::memcmp(seen.data(), inside.raw(), seen.size()), 0);
  }
}

// The worked example of CONTRIBUTING.md, "An op": below the line that names a file stand lines of it.
TEST(Clip, TheLinesOfTheDocumentAreThoseOfTheCode) {
  const auto read = [](const std::string& name) {
    std::ifstream file(std::string(kSourceDir) + "/" + name);
    std::string text(std::istreambuf_iterator<char>(file), {});
    return text;
  };
  const std::string page = read("CONTRIBUTING.md");
  const size_t section = page.find("\n## An op\n"), begin = page.find("```cpp\n", section) + 7;
  std::istringstream example(page.substr(begin, page.find("```", begin) - begin));
  std::string line, code;
  int files = 0;
  while (std::getline(example, line)) {
    if (line.rfind("// core/ops/", 0) == 0) {
      code = read(line.substr(3));
      ++files;
    } else if (!line.empty()) {
      EXPECT_NE(code.find(line), std::string::npos) << line;
    }
  }
  EXPECT_EQ(files, 5);
}

// Away from the limits, where the gradient jumps.
TEST(Clip, GradientMatchesFiniteDifferences) {
  const Values x = {-3, -0.5, 0, 0.7, 4}, weights = {1, 2, -3, 4, 5};
  Values gradient = weights, seen_x = x;
  std::vector<uint8_t> seen(x.size());
  ops::ref::clip(seen_x.data(), 5, 1.5, seen.data());
  ops::ref::clip_backward(seen.data(), 5, gradient.data());
  const auto f = [&](const Values& at) {
    Values clipped = at;
    ops::ref::clip(clipped.data(), 5, 1.5, nullptr);
    return dot(clipped, weights);
  };
  expect_gradient(f, x, gradient, "clip");
}

TEST(Softcap, IsItsReference) {
  Tensor x = random_tensor({7, 501}, DType::f32, 1, 40);
  Values expected = values_of(x);
  ops::ref::softcap(expected.data(), x.numel(), 30.0);
  ops::softcap(x, 30);
  expect_close(x, expected, 1e-6, 0, "capped");
}

}  // namespace
}  // namespace nibble
