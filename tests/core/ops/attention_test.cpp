#include "nibble/core/ops/attention.h"

#include "nibble/core/ops/ref/attention.h"
#include "nibble/tests/core/ops/op_test.h"

namespace nibble {
namespace {

using namespace test;
using ops::AttentionParams;
using ops::AttentionSpan;

class AttentionTest : public EverySimd {
 protected:
  void SetUp() override {
    EverySimd::SetUp();
#if defined(__x86_64__)
    if (has_bf16(isa()) && !__builtin_cpu_supports("avx512bf16") && GetParam() == HWY_AVX3) {
      GTEST_SKIP() << "attention's instructions for bf16 are the CPU's own";
    }
#endif
  }
};
NIBBLE_EVERY_SIMD(AttentionTest);

struct AttentionCase {
  std::string name;
  int64_t queries, keys;
  std::vector<AttentionSpan> spans;
  AttentionParams params;
};

AttentionParams heads_of(int64_t heads, int64_t kv_heads, int64_t head_size) {
  return {.heads = heads,
          .kv_heads = kv_heads,
          .head_size = head_size,
          .scale = 1 / std::sqrt(static_cast<float>(head_size))};
}

std::vector<AttentionSpan> documents(const std::vector<int64_t>& lengths) {
  std::vector<AttentionSpan> spans;
  int64_t at = 0;
  for (int64_t length : lengths) {
    spans.push_back({at, at + length, at, at + length});
    at += length;
  }
  return spans;
}

/// Answers of so many tokens to one prompt: the first one's document has the prompt.
std::vector<AttentionSpan> branches(int64_t prompt, const std::vector<int64_t>& answers, int64_t begin = 0) {
  std::vector<AttentionSpan> spans = {{begin, begin + prompt + answers[0], begin, begin + prompt + answers[0]}};
  for (size_t i = 1; i < answers.size(); ++i) {
    const int64_t at = spans.back().q_end;
    spans.push_back({at, at + answers[i], begin, at + answers[i], begin + prompt, at});
  }
  return spans;
}

std::vector<AttentionCase> attention_cases() {
  std::vector<AttentionCase> all;
  for (int64_t head_size : {6, 8, 20, 40, 64, 80, 96, 128, 192}) {
    all.push_back({"head size " + std::to_string(head_size), 75, 75, documents({75}), heads_of(2, 2, head_size)});
  }
  all.push_back({"grouped heads", 200, 200, documents({200}), heads_of(6, 2, 16)});
  all.push_back({"one key head", 130, 130, documents({130}), heads_of(9, 1, 16)});
  all.push_back({"columns of several tiles", 800, 800, documents({800}), heads_of(4, 4, 16)});
  all.push_back({"documents", 237, 237, documents({1, 64, 3, 100, 65, 4}), heads_of(3, 3, 16)});
  AttentionCase window = {"window", 300, 300, documents({170, 130}), heads_of(2, 1, 16)};
  window.params.window = 70;
  all.push_back(window);
  window.name = "narrow window";
  window.params.window = 3;
  all.push_back(window);
  AttentionCase capped = {"soft cap", 140, 140, documents({140}), heads_of(2, 2, 16)};
  capped.params.softcap = 1.5f;
  all.push_back(capped);
  AttentionCase tilted = {"position slopes", 140, 140, documents({90, 50}), heads_of(4, 2, 16)};
  tilted.params.alibi_slopes = {0.5f, 0.25f, 0.125f, 0.0625f};
  all.push_back(tilted);
  // 3 * 90 and more are no bf16 numbers: the rounding shows.
  tilted = {"rounded position slopes", 700, 700, documents({300, 400}), heads_of(4, 2, 16)};
  tilted.params.alibi_slopes = {0.5f, 0.75f, 0.011f, 0.0625f};
  tilted.params.alibi_rounded_scale = 0.25f;
  all.push_back(tilted);
  all.push_back({"queries continue a cache", 70, 200, {{0, 70, 0, 200}}, heads_of(4, 2, 16)});
  all.push_back({"one token after a long cache", 1, 1500, {{0, 1, 0, 1500}}, heads_of(6, 2, 20)});
  AttentionCase decode = {"one token, window, some keys unused", 1, 1600, {{0, 1, 0, 1500}}, heads_of(2, 2, 20)};
  decode.params.window = 700;
  all.push_back(decode);
  AttentionCase shared = {"a shared prompt", 330, 330, branches(100, {90, 140}), heads_of(4, 2, 16)};
  all.push_back(shared);
  shared.params.window = 70;
  shared.name = "a shared prompt, window";
  all.push_back(shared);
  shared.params.window = 0;
  shared.params.softcap = 1.5f;
  shared.params.alibi_slopes = {0.5f, 0.25f, 0.125f, 0.0625f};
  shared.name = "a shared prompt, soft cap and position slopes";
  all.push_back(shared);
  shared.params.softcap = 0;
  shared.params.alibi_slopes = {0.5f, 0.75f, 0.011f, 0.0625f};
  shared.params.alibi_rounded_scale = 0.25f;
  shared.name = "a shared prompt, rounded position slopes";
  all.push_back(shared);
  shared = {"two prompts of many answers", 1010, 1010, branches(64, {1, 200, 3, 64, 90}), heads_of(6, 2, 20)};
  for (const AttentionSpan& span : branches(500, {30, 58}, 422)) shared.spans.push_back(span);
  all.push_back(shared);
  all.push_back({"rows in no document", 120, 120, {{5, 70, 5, 70}, {80, 110, 80, 110}}, heads_of(2, 1, 16)});
  return all;
}

/// One token each behind texts that begin with one of two prompts, whose keys stand before all others.
AttentionCase behind_prompts(const AttentionParams& params) {
  constexpr int64_t kSlab = 700, kUnseen = 50;  // between the keys of two tokens
  AttentionCase c = {"tokens behind shared prompts", 0, 2 * kSlab, {}, params};
  for (const int64_t own : {1, 64, 3, 600, 65, 2, 130, 31, 7, 1, 90}) {
    const int64_t begin = c.queries < 6 ? 0 : kSlab, prompt = c.queries < 6 ? 70 : 600;
    c.spans.push_back({c.queries, c.queries + 1, begin, c.keys + own, begin + prompt, c.keys});
    ++c.queries;
    c.keys += own + kUnseen;
  }
  return c;
}

/// What a backward pass has no form of.
std::vector<AttentionCase> decoding_cases() {
  std::vector<AttentionCase> all = {behind_prompts(heads_of(4, 2, 20)), behind_prompts(heads_of(9, 3, 64)),
                                    behind_prompts(heads_of(12, 12, 16))};
  AttentionParams other = heads_of(4, 2, 16);
  other.softcap = 1.5f;
  all.push_back(behind_prompts(other));
  other.window = 100;
  all.push_back(behind_prompts(other));
  other.window = 0;
  other.alibi_slopes = {0.5f, 0.25f, 0.125f, 0.0625f};
  all.push_back(behind_prompts(other));
  return all;
}

/// ||actual - expected|| <= relative ||expected||
void expect_close_in_norm(const Tensor& actual, const Values& expected, double relative, const std::string& what) {
  Values difference = values_of(actual);
  for (size_t i = 0; i < difference.size(); ++i) difference[i] -= expected[i];
  EXPECT_LE(std::sqrt(dot(difference, difference)), relative * std::sqrt(dot(expected, expected))) << what;
}

/// With AVX512_BF16, bf16 products take the weights and the score gradients rounded to bf16. The error then is not
/// relative to an element but to the terms of its sum: about 2^-9 / sqrt(3) of the norm for each of the roundings.
constexpr double kPairsInNorm = 0x1p-8;

bool multiplies_in_bf16(int64_t target, DType dtype) {
  return target == HWY_AVX3 && has_bf16(isa()) && dtype == DType::bf16 &&
         ops::bf16_products() == ops::Bf16Products::bf16;
}

/// f32, bf16, and bf16 in the arithmetic of f32.
template <typename F>
void for_each_arithmetic(const F& test) {
  test(DType::f32);
  for (const ops::Bf16Products products : {ops::Bf16Products::bf16, ops::Bf16Products::f32}) {
    const MultipliesBf16 in(products);
    test(DType::bf16);
  }
}

struct Problem {
  explicit Problem(const AttentionCase& c, DType dtype = DType::f32) {
    const AttentionParams& p = c.params;
    q = random_tensor({c.queries, p.heads * p.head_size}, dtype, 1, 1.5);
    k = random_tensor({c.keys, p.kv_heads * p.head_size}, dtype, 2, 1.5);
    v = random_tensor({c.keys, p.kv_heads * p.head_size}, dtype, 3);
    dout = random_tensor(q.shape(), dtype, 4);
    out = Tensor::empty(pool(), q.shape(), dtype);
    lse = Tensor::empty(pool(), {p.heads, c.queries}, DType::f32);
    dq = Tensor::empty(pool(), q.shape(), dtype);
    dk = Tensor::empty(pool(), k.shape(), dtype);
    dv = Tensor::empty(pool(), v.shape(), dtype);
  }
  /// The same inputs, results of its own.
  Problem with_fresh_outputs() const {
    Problem other = *this;
    for (Tensor Problem::*of : {&Problem::out, &Problem::lse, &Problem::dq, &Problem::dk, &Problem::dv}) {
      other.*of = Tensor::empty(pool(), (this->*of).shape(), (this->*of).dtype());
    }
    return other;
  }
  void forward(const AttentionCase& c) { ops::attention_forward(q, k, v, c.spans, c.params, out, lse); }
  void backward(const AttentionCase& c) {
    ops::attention_backward(dout, q, k, v, out, lse, c.spans, c.params, dq, dk, dv);
  }
  Tensor q, k, v, dout, out, lse, dq, dk, dv;
};

TEST(AttentionReference, GradientsMatchFiniteDifferences) {
  AttentionCase c = {"", 5, 7, {{0, 2, 0, 2}, {2, 5, 2, 7}}, heads_of(4, 2, 3)};
  for (int variant = 0; variant < 6; ++variant) {
    if (variant == 5) c.spans = {{0, 1, 0, 3}, {1, 3, 0, 5, 2, 3}, {3, 5, 0, 7, 2, 5}};
    if (variant == 1) c.params.window = 2;
    if (variant == 2) c.params.softcap = 0.7f;
    if (variant == 3) c.params.alibi_slopes = {0.5f, 0.25f, 0.125f, 0.0625f};
    if (variant == 4) c.params.alibi_rounded_scale = 0.3f;
    const Values q = random_values(5 * 12, 1), k = random_values(7 * 6, 2), v = random_values(7 * 6, 3);
    const Values dout = random_values(5 * 12, 4);
    Values out, lse;
    const auto loss = [&](const Values& qs, const Values& ks, const Values& vs) {
      out.assign(5 * 12, 0);
      lse.assign(4 * 5, 0);
      ops::ref::attention_forward(qs.data(), ks.data(), vs.data(), 5, c.spans, c.params, out.data(), lse.data());
      return dot(out, dout);
    };
    loss(q, k, v);
    Values dq(q.size()), dk(k.size()), dv(v.size());
    ops::ref::attention_backward(dout.data(), q.data(), k.data(), v.data(), out.data(), lse.data(), 5, c.spans,
                                 c.params, dq.data(), dk.data(), dv.data());
    expect_gradient([&](const Values& x) { return loss(x, k, v); }, q, dq, "dq");
    expect_gradient([&](const Values& x) { return loss(q, x, v); }, k, dk, "dk");
    expect_gradient([&](const Values& x) { return loss(q, k, x); }, v, dv, "dv");
  }
}

TEST_P(AttentionTest, ForwardMatchesReference) {
  std::vector<AttentionCase> all = attention_cases();
  for (const AttentionCase& c : decoding_cases()) all.push_back(c);
  for (const AttentionCase& c : all) {
    for_each_arithmetic([&](DType dtype) {
      Problem p(c, dtype);
      p.forward(c);
      Values out(static_cast<size_t>(p.out.numel())), lse(static_cast<size_t>(p.lse.numel()));
      ops::ref::attention_forward(values_of(p.q).data(), values_of(p.k).data(), values_of(p.v).data(), c.queries,
                                  c.spans, c.params, out.data(), lse.data());
      // Scores up to 15, good to 2e-6; out is a mean of values around 1. In bf16 it is rounded once at the end.
      if (multiplies_in_bf16(GetParam(), dtype)) {
        expect_close_in_norm(p.out, out, kPairsInNorm, c.name + ": out");
      } else {
        expect_close(p.out, out, rounding(dtype, 1e-5), 1e-5, c.name + ": out");
      }
      expect_close(p.lse, lse, 1e-6, 5e-6, c.name + ": log_sum_exp");
    });
  }
}

TEST_P(AttentionTest, BackwardMatchesReference) {
  for (const AttentionCase& c : attention_cases()) {
    for_each_arithmetic([&](DType dtype) {
      Problem p(c, dtype);
      p.forward(c);
      p.backward(c);
      Values dq(static_cast<size_t>(p.q.numel())), dk(static_cast<size_t>(p.k.numel())), dv(dk.size());
      ops::ref::attention_backward(values_of(p.dout).data(), values_of(p.q).data(), values_of(p.k).data(),
                                   values_of(p.v).data(), values_of(p.out).data(), values_of(p.lse).data(), c.queries,
                                   c.spans, c.params, dq.data(), dk.data(), dv.data());
      if (multiplies_in_bf16(GetParam(), dtype)) {
        expect_close_in_norm(p.dq, dq, kPairsInNorm, c.name + ": dq");
        expect_close_in_norm(p.dk, dk, kPairsInNorm, c.name + ": dk");
        expect_close_in_norm(p.dv, dv, kPairsInNorm, c.name + ": dv");
        return;
      }
      // The same inputs, out and log_sum_exp: what differs is f32 arithmetic, then one rounding of the result.
      expect_close(p.dq, dq, rounding(dtype, 2e-5), 3e-5, c.name + ": dq");
      expect_close(p.dk, dk, rounding(dtype, 2e-5), 3e-5, c.name + ": dk");
      expect_close(p.dv, dv, rounding(dtype, 2e-5), 3e-5, c.name + ": dv");
    });
  }
}

TEST_P(AttentionTest, BitsDoNotDependOnThreads) {
  for (const AttentionCase& c : attention_cases()) {
    for_each_arithmetic([&](DType dtype) {
      const Problem inputs(c, dtype);
      expect_same_bits_for_any_threads([&] {
        Problem p = inputs.with_fresh_outputs();
        p.forward(c);
        p.backward(c);
        return std::vector<Tensor>{p.out, p.lse, p.dq, p.dk, p.dv};
      });
    });
  }
}

// Where threads are more than columns of keys, several share one.
TEST_P(AttentionTest, SharedColumnsOfKeysGiveTheSameBits) {
  AttentionCase windowed = {"window", 1030, 1030, documents({1030}), heads_of(6, 3, 16)};
  windowed.params.window = 300;
  const AttentionCase all[] = {{"one", 1030, 1030, documents({1030}), heads_of(6, 3, 16)},
                               {"two", 1200, 1200, documents({700, 500}), heads_of(6, 3, 16)},
                               {"tree", 1100, 1100, branches(600, {300, 200}), heads_of(6, 6, 16)},
                               windowed};
  for (const AttentionCase& c : all) {
    const Problem inputs(c, DType::bf16);
    const auto run = [&] {
      Problem p = inputs.with_fresh_outputs();
      p.forward(c);
      p.backward(c);
      return std::vector<Tensor>{p.dq, p.dk, p.dv};
    };
    const std::vector<Tensor> one = run();
    for (const int count : {12, 48}) {  // which wait for each other
      set_threads(count);
      const std::vector<Tensor> many = run();
      for (size_t i = 0; i < 3; ++i) EXPECT_EQ(std::memcmp(one[i].raw(), many[i].raw(), one[i].bytes()), 0) << c.name;
    }
    set_threads(1);
  }
}

TEST_P(AttentionTest, PackedDocumentsDoNotSeeEachOther) {
  const AttentionCase both = {"", 150, 150, documents({70, 80}), heads_of(2, 1, 16)};
  const AttentionCase alone = {"", 80, 80, documents({80}), heads_of(2, 1, 16)};
  for_each_arithmetic([&](DType dtype) {
    Problem packed(both, dtype), second(alone, dtype);
    packed.forward(both);
    packed.backward(both);
    for (Tensor Problem::*of : {&Problem::q, &Problem::k, &Problem::v, &Problem::dout}) {
      second.*of = (packed.*of).rows(70, 150);
    }
    second.forward(alone);
    second.backward(alone);
    for (Tensor Problem::*of : {&Problem::out, &Problem::dq, &Problem::dk, &Problem::dv}) {
      EXPECT_EQ(std::memcmp((packed.*of).rows(70, 150).raw(), (second.*of).raw(), (second.*of).bytes()), 0);
    }
  });
}

TEST_P(AttentionTest, LaterKeysDoNotMatter) {
  const AttentionCase c = {"", 100, 100, documents({100}), heads_of(2, 1, 16)};
  Problem p(c), changed(c);
  changed.k = p.k.clone(pool());
  changed.v = p.v.clone(pool());
  for (int64_t i = 60 * 16; i < 100 * 16; ++i) changed.k.data<float>()[i] = changed.v.data<float>()[i] = 9;
  p.forward(c);
  changed.forward(c);
  EXPECT_EQ(std::memcmp(p.out.raw(), changed.out.raw(), 60 * 32 * 4), 0);
  EXPECT_NE(std::memcmp(p.out.rows(60, 61).raw(), changed.out.rows(60, 61).raw(), 32 * 4), 0);
}

TEST_P(AttentionTest, NanReachesTheQueriesThatSeeItsKeyAndNoOthers) {
  constexpr int64_t kKey = 80, kLast = 139;
  const AttentionCase c = {"", 140, 140, documents({140}), heads_of(1, 1, 16)};
  for_each_arithmetic([&](DType dtype) {
    Problem p(c, dtype);
    if (dtype == DType::f32) p.k.data<float>()[kKey * 16] = NAN;
    if (dtype == DType::bf16) p.k.data<bf16>()[kKey * 16] = bf16(NAN);
    p.forward(c);
    p.backward(c);
    EXPECT_EQ(ops::first_nonfinite(p.out), kKey * 16);
    // Of the queries before, dq may have 0 * NaN: whole panels of them are multiplied with a key.
    for (const Tensor& of : {p.out, p.dq}) EXPECT_EQ(ops::first_nonfinite(of.rows(kLast, kLast + 1)), 0);
  });
}

TEST_P(AttentionTest, DecodingTokenByTokenGivesWhatTheWholeSequenceGives) {
  const AttentionCase whole = {"", 90, 90, documents({90}), heads_of(4, 2, 16)};
  Problem p(whole);
  p.forward(whole);
  for (int64_t t : {0, 1, 50, 89}) {
    const std::vector<AttentionSpan> spans = {{0, 1, 0, t + 1}};
    Tensor out = Tensor::empty(pool(), {1, 64}, DType::f32), lse = Tensor::empty(pool(), {4, 1}, DType::f32);
    ops::attention_forward(p.q.rows(t, t + 1), p.k.rows(0, t + 1), p.v.rows(0, t + 1), spans, whole.params, out, lse);
    expect_close(out, values_of(p.out.rows(t, t + 1)), 2e-6, 2e-6, "token " + std::to_string(t));
  }
}

// Each answer and the prompt in a document of their own: the prompt's gradients are then sums over its copies.
TEST_P(AttentionTest, ASharedPromptIsAsIfEachAnswerHadItsOwn) {
  constexpr int64_t kPrompt = 100, kChosen = 90, kRejected = 140, kAll = kPrompt + kChosen;
  for (const int64_t window : {0, 70}) {
    AttentionCase shared = {"", 330, 330, branches(kPrompt, {kChosen, kRejected}), heads_of(4, 2, 16)};
    AttentionCase apart = {"", 430, 430, documents({kAll, kPrompt + kRejected}), shared.params};
    shared.params.window = apart.params.window = window;
    Problem p(shared), copies(apart);
    const auto copy = [&](const Tensor& from, Tensor& to) {
      const size_t row = from.bytes() / 330;
      std::byte* rows = to.mutable_raw();
      std::memcpy(rows, from.raw(), kAll * row);
      std::memcpy(rows + kAll * row, from.raw(), kPrompt * row);
      std::memcpy(rows + (kAll + kPrompt) * row, from.raw() + kAll * row, kRejected * row);
    };
    for (Tensor Problem::*of : {&Problem::q, &Problem::k, &Problem::v, &Problem::dout}) copy(p.*of, copies.*of);
    std::memset(copies.dout.mutable_raw() + kAll * 64 * 4, 0, kPrompt * 64 * 4);  // the shared rows' own gradient: once
    for (Problem* each : {&p, &copies}) each->forward(each == &p ? shared : apart);
    p.backward(shared);
    copies.backward(apart);
    const auto joined = [&](const Tensor& of) {
      const Values all = values_of(of);
      const size_t width = all.size() / 430;
      Values sums(all.begin(), all.begin() + kAll * static_cast<ptrdiff_t>(width));
      for (size_t i = 0; i < kPrompt * width; ++i) sums[i] += all[kAll * width + i];
      sums.insert(sums.end(), all.begin() + (kAll + kPrompt) * static_cast<ptrdiff_t>(width), all.end());
      return sums;
    };
    Values out = values_of(copies.out);
    out.erase(out.begin() + kAll * 64, out.begin() + (kAll + kPrompt) * 64);
    expect_close(p.out, out, 2e-6, 2e-6, "out");
    expect_close(p.dq, joined(copies.dq), 1e-5, 2e-5, "dq");
    expect_close(p.dk, joined(copies.dk), 1e-5, 2e-5, "dk");
    expect_close(p.dv, joined(copies.dv), 1e-5, 2e-5, "dv");
  }
}

// One token after texts of many lengths, each in a slab of its own, and a piece of text between them.
TEST_P(AttentionTest, ManySequencesAtOnceHaveTheBitsOfEachAlone) {
  for (const auto& [head_size, dtype] : {std::pair(20, DType::f32), {128, DType::bf16}}) {
    constexpr int64_t kSlab = 1200;
    AttentionCase all = {"", 0, 0, {}, heads_of(4, 2, head_size)};
    for (const int64_t length : {1100, 3, 513, 64, 1, 700, 65, 900, 2, 640, 1024}) {
      const int64_t queries = length == 64 ? 12 : length == 900 ? 5 : 1;
      all.spans.push_back({all.queries, all.queries + queries, all.keys, all.keys + length});
      all.queries += queries;
      all.keys += kSlab;
    }
    Problem p(all, dtype);
    p.forward(all);
    for (const AttentionSpan& span : all.spans) {
      const int64_t queries = span.q_end - span.q_begin, keys = span.k_end - span.k_begin;
      const AttentionCase alone = {"", queries, keys, {{0, queries, 0, keys}}, all.params};
      Problem one(alone, dtype);
      one.q = p.q.rows(span.q_begin, span.q_end);
      one.k = p.k.rows(span.k_begin, span.k_end);
      one.v = p.v.rows(span.k_begin, span.k_end);
      one.forward(alone);
      const Tensor together = p.out.rows(span.q_begin, span.q_end);
      EXPECT_EQ(std::memcmp(together.raw(), one.out.raw(), one.out.bytes()), 0) << keys << " keys";
    }
  }
}

TEST_P(AttentionTest, TokensBehindASharedPromptHaveTheBitsOfEachAloneForAnyNumberOfThreads) {
  for (const AttentionCase& c : decoding_cases()) {
    for_each_arithmetic([&](DType dtype) {
      Problem p(c, dtype);
      expect_same_bits_for_any_threads([&] {
        p = p.with_fresh_outputs();
        p.forward(c);
        return std::vector<Tensor>{p.out, p.lse};
      });
      Tensor out = Tensor::empty(pool(), {1, p.q.dim(1)}, dtype);
      Tensor lse = Tensor::empty(pool(), {c.params.heads, 1}, DType::f32);
      for (AttentionSpan span : c.spans) {
        const Tensor q = p.q.rows(span.q_begin, span.q_end), together = p.out.rows(span.q_begin, span.q_end);
        span.q_begin = 0;
        span.q_end = 1;
        ops::attention_forward(q, p.k, p.v, {&span, 1}, c.params, out, lse);
        EXPECT_EQ(std::memcmp(together.raw(), out.raw(), out.bytes()), 0) << span.k_end - span.hole_end << " own keys";
      }
    });
  }
}

TEST(Attention, WrongShapesAreRefused) {
  const AttentionCase c = {"", 10, 10, documents({10}), heads_of(2, 1, 8)};
  Problem p(c);
  const std::vector<AttentionSpan> past = {{0, 11, 0, 11}}, few_keys = {{0, 10, 0, 5}};
  EXPECT_THROW(ops::attention_forward(p.q, p.k, p.v, past, c.params, p.out, p.lse), std::logic_error);
  EXPECT_THROW(ops::attention_forward(p.q, p.k, p.v, few_keys, c.params, p.out, p.lse), std::logic_error);
  EXPECT_THROW(ops::attention_forward(p.k, p.k, p.v, c.spans, c.params, p.out, p.lse), std::logic_error);
  const std::vector<std::vector<AttentionSpan>> no_prompts = {
      {{0, 5, 0, 10, 2, 5}},                                  // whose prompt nobody has
      {{0, 5, 0, 5}, {5, 10, 1, 10, 2, 5}},                   // begins elsewhere
      {{0, 4, 0, 4}, {4, 10, 0, 10, 5, 6}},                   // is longer than the first document
      {{0, 4, 0, 4}, {4, 10, 0, 10, 2, 6}},                   // queries at keys that are no own ones
      {{0, 4, 0, 4}, {4, 6, 0, 6, 2, 4}, {6, 9, 0, 9, 3, 6}}  // two prompts
  };
  for (const auto& spans : no_prompts) {
    EXPECT_THROW(ops::attention_backward(p.dout, p.q, p.k, p.v, p.out, p.lse, spans, c.params, p.dq, p.dk, p.dv),
                 std::logic_error);
  }
  const std::vector<AttentionSpan> no_keys = {{0, 5, 2, 10, 2, 5}};  // in the prompt
  EXPECT_THROW(ops::attention_forward(p.q, p.k, p.v, no_keys, c.params, p.out, p.lse), std::logic_error);
  EXPECT_THROW(ops::attention_forward(p.q, p.k, p.v, no_prompts[3], c.params, p.out, p.lse), std::logic_error);
}

}  // namespace
}  // namespace nibble
