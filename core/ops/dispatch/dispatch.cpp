// What callers see of every op: shapes are checked, once for all devices, then the tensors' device gives the body.

#include <string>

#include "nibble/core/ops/dispatch/dispatch.h"

namespace nibble::ops {

// ---- activation.h ----

void activation_forward(Activation f, const Tensor& x, Tensor& y) {
  NIBBLE_CHECK(same_count(x, y), "activation: shapes");
  on(x).activation_forward(f, x, y);
}

void activation_backward(Activation f, const Tensor& dy, const Tensor& x, Tensor& dx) {
  NIBBLE_CHECK(same_count(x, dy, dx), "activation: shapes");
  on(x).activation_backward(f, dy, x, dx);
}

void gated_forward(Activation f, const Tensor& gate, const Tensor& up, Tensor& y) {
  NIBBLE_CHECK(same_count(y, gate, up), "gated activation: shapes");
  on(y).gated_forward(f, gate, up, y);
}

void gated_backward(Activation f, const Tensor& dy, const Tensor& gate, const Tensor& up, Tensor& dgate, Tensor& dup,
                    Tensor& y_recomputed) {
  NIBBLE_CHECK(same_count(dy, gate, up, dgate, dup) && (!y_recomputed || same_count(dy, y_recomputed)),
               "gated activation: shapes");
  on(dy).gated_backward(f, dy, gate, up, dgate, dup, y_recomputed);
}

void xielu_forward(const Tensor& x, const Tensor& alpha_p, const Tensor& alpha_n, Tensor& y) {
  NIBBLE_CHECK(same_count(x, y) && alpha_p.numel() == 1 && alpha_n.numel() == 1, "xielu: shapes");
  on(x).xielu_forward(x, alpha_p, alpha_n, y);
}

void xielu_backward(const Tensor& dy, const Tensor& x, const Tensor& alpha_p, const Tensor& alpha_n, Tensor& dx,
                    Tensor& dalpha_p, Tensor& dalpha_n) {
  NIBBLE_CHECK(same_count(x, dy, dx) && alpha_p.numel() == 1 && alpha_n.numel() == 1, "xielu: shapes");
  on(x).xielu_backward(dy, x, alpha_p, alpha_n, dx, dalpha_p, dalpha_n);
}

void clamped_gated_forward(Activation f, float limit, const Tensor& gate, const Tensor& up, Tensor& y) {
  NIBBLE_CHECK(same_count(y, gate, up) && limit > 0, "clamped gated activation: shapes or limit");
  on(y).clamped_gated_forward(f, limit, gate, up, y);
}

void clamped_gated_backward(Activation f, float limit, const Tensor& dy, const Tensor& gate, const Tensor& up,
                            Tensor& dgate, Tensor& dup) {
  NIBBLE_CHECK(same_count(dy, gate, up, dgate, dup) && limit > 0, "clamped gated activation: shapes or limit");
  on(dy).clamped_gated_backward(f, limit, dy, gate, up, dgate, dup);
}

// ---- clip.h, softcap.h ----

void clip(Tensor& x, float limit, Tensor& inside) {
  NIBBLE_CHECK(!inside || same_count(x, inside), "clip: shapes");
  on(x).clip(x, limit, inside);
}

void clip_backward(const Tensor& inside, Tensor& dx) {
  NIBBLE_CHECK(same_count(dx, inside), "clip: shapes");
  on(dx).clip_backward(inside, dx);
}

void softcap(Tensor& x, float cap) { on(x).softcap(x, cap); }

// ---- columns.h ----

namespace {

void check_columns(const Tensor& x, int64_t begin, const Tensor& part) {
  NIBBLE_CHECK(x.dtype() == part.dtype() && x.dim(0) == part.dim(0), "copy_columns: dtype or rows");
  NIBBLE_CHECK(begin >= 0 && begin <= x.dim(1) - part.dim(1), "copy_columns: columns");
}

}  // namespace

void copy_columns_out(const Tensor& x, int64_t begin, Tensor& part) {
  check_columns(x, begin, part);
  on(x).copy_columns_out(x, begin, part);
}

void copy_columns_in(const Tensor& part, int64_t begin, Tensor& x) {
  check_columns(x, begin, part);
  on(x).copy_columns_in(part, begin, x);
}

void transpose(const Tensor& x, Tensor& y) {
  NIBBLE_CHECK(x.dtype() == y.dtype() && y.shape() == (Shape{x.dim(1), x.dim(0)}), "transpose: dtype or shape");
  on(x).transpose(x, y);
}

// ---- cross_entropy.h ----

void cross_entropy(const Tensor& logits, const Tensor& targets, float softcap, float scale, Tensor& losses,
                   Tensor& dlogits, const Tensor& weights) {
  const int64_t count = logits.dim(0);
  NIBBLE_CHECK(logits.rank() == 2 && targets.numel() == count && losses.numel() == count, "cross_entropy: shapes");
  NIBBLE_CHECK(!dlogits || dlogits.shape() == logits.shape(), "cross_entropy: shape of dlogits");
  NIBBLE_CHECK(!weights || weights.numel() == count, "cross_entropy: number of weights");
  check_indices(targets, logits.dim(1), "cross_entropy");
  on(logits).cross_entropy(logits, targets, softcap, scale, losses, dlogits, weights);
}

void cross_entropy_statistics(const Tensor& logits, const Tensor& targets, float softcap, Tensor& statistics) {
  const int64_t rows = logits.dim(0), width = statistics.dim(0);
  NIBBLE_CHECK(logits.dim(1) > 0 && targets.numel() == rows && statistics.numel() == (width == 3 ? 3 : 7) * rows,
               "cross_entropy_statistics: shapes");
  on(logits).cross_entropy_statistics(logits, targets, softcap, statistics);
}

void cross_entropy_merge(const Tensor& statistics, Tensor& row_max, Tensor& row_sumexp, Tensor& losses,
                         Tensor& token_statistics) {
  NIBBLE_CHECK(statistics.dim(0) % (token_statistics ? 7 : 3) == 0 && losses.numel() == statistics.dim(1) &&
                   same_count(losses, row_max, row_sumexp) &&
                   (!token_statistics || token_statistics.numel() == 4 * losses.numel()),
               "cross_entropy_merge: shapes");
  on(statistics).cross_entropy_merge(statistics, row_max, row_sumexp, losses, token_statistics);
}

void cross_entropy_backward(const Tensor& logits, const Tensor& targets, const Tensor& row_max,
                            const Tensor& row_sumexp, float softcap, float scale, Tensor& dlogits,
                            const Tensor& weights) {
  NIBBLE_CHECK(
      targets.numel() == logits.dim(0) && same_count(targets, row_max, row_sumexp) && dlogits.shape() == logits.shape(),
      "cross_entropy_backward: shapes");
  NIBBLE_CHECK(!weights || weights.numel() == logits.dim(0), "cross_entropy_backward: number of weights");
  on(logits).cross_entropy_backward(logits, targets, row_max, row_sumexp, softcap, scale, dlogits, weights);
}

void divergence(const Tensor& logits, const Tensor& teacher, float softcap, float temperature, float beta, float scale,
                Tensor& losses, Tensor& entropies, Tensor& dlogits) {
  NIBBLE_CHECK(logits.rank() == 2 && teacher.shape() == logits.shape() && losses.numel() == logits.dim(0) &&
                   same_count(losses, entropies) && (!dlogits || dlogits.shape() == logits.shape()) && temperature > 0,
               "divergence: shapes");
  on(logits).divergence(logits, teacher, softcap, temperature, beta, scale, losses, entropies, dlogits);
}

// ---- dropout.h ----

void dropout(const Tensor& x, const Tensor& row_keys, float p, const DropoutKey& key, Tensor& y) {
  NIBBLE_CHECK(p >= 0 && p < 1, "dropout: rate");
  NIBBLE_CHECK(x.rank() == 2 && y.shape() == x.shape() && row_keys.numel() == x.dim(0), "dropout: shapes");
  on(x).dropout(x, row_keys, p, key, y);
}

// ---- elementwise.h, residual.h ----

void cast(const Tensor& from, Tensor& to) {
  NIBBLE_CHECK(same_count(from, to), "cast: number of elements");
  on(to).cast(from, to);
}

void add(const Tensor& y, Tensor& x, float scale) {
  NIBBLE_CHECK(same_count(x, y), "add: number of elements");
  on(x).add_residual(x, y, scale, x);
}

void add_residual(const Tensor& x, const Tensor& y, float scale, Tensor& sum) {
  NIBBLE_CHECK(same_count(sum, x, y), "residual: number of elements");
  on(sum).add_residual(x, y, scale, sum);
}

void scale(Tensor& x, float factor) { on(x).scale(x, factor); }

void scale_rows(const Tensor& x, const Tensor& weights, Tensor& y) {
  NIBBLE_CHECK(x.rank() == 2 && y.shape() == x.shape() && y.dtype() == x.dtype() &&
                   (weights.numel() == 1 || weights.numel() == x.dim(0)),
               "scale_rows: shapes or dtypes");
  on(x).scale_rows(x, weights, y);
}

void scale_rows_backward(const Tensor& dy, const Tensor& x, const Tensor& weights, Tensor& dx, Tensor& dweights) {
  NIBBLE_CHECK(x.rank() == 2 && x.shape() == dy.shape() && dx.shape() == x.shape() && dx.dtype() == dy.dtype() &&
                   weights.numel() == x.dim(0) && dweights.numel() == x.dim(0),
               "scale_rows_backward: shapes or dtypes");
  on(dy).scale_rows_backward(dy, x, weights, dx, dweights);
}

void add_bias(const Tensor& bias, Tensor& x) {
  NIBBLE_CHECK(x.rank() == 2 && bias.numel() == x.dim(1), "add_bias: shapes");
  on(x).add_bias(bias, x);
}

void bias_backward(const Tensor& dy, Tensor& dbias) {
  NIBBLE_CHECK(dy.rank() == 2 && dbias.numel() == dy.dim(1), "bias_backward: shapes");
  on(dy).bias_backward(dy, dbias);
}

double sum(const Tensor& x) { return on(x).sum(x); }
double sum_of_squares(const Tensor& x) { return on(x).sum_of_squares(x); }
int64_t first_nonfinite(const Tensor& x) { return on(x).first_nonfinite(x); }

void fill_normal(Tensor& x, float std, uint64_t seed, uint64_t purpose) { on(x).fill_normal(x, std, seed, purpose); }
void fill_uniform(Tensor& x, float low, float high, uint64_t seed, uint64_t purpose) {
  on(x).fill_uniform(x, low, high, seed, purpose);
}

// ---- embedding.h ----

void embedding_forward(const Tensor& ids, const Tensor& table, float scale, Tensor& out) {
  NIBBLE_CHECK(table.rank() == 2 && out.numel() == ids.numel() * table.dim(1), "embedding: shape of out");
  const int32_t* id = ids.data<const int32_t>();
  for (int64_t t = 0; t < ids.numel(); ++t) {
    if (id[t] < 0 || id[t] >= table.dim(0)) {
      throw InputError("token " + std::to_string(t),
                       "id " + std::to_string(id[t]) + " is outside the vocabulary of " + std::to_string(table.dim(0)));
    }
  }
  on(out).embedding_forward(ids, table, scale, out);
}

void embedding_backward(const Tensor& ids, const Tensor& dout, float scale, Tensor& dtable) {
  NIBBLE_CHECK(dtable.rank() == 2 && dout.numel() == ids.numel() * dtable.dim(1), "embedding: shape of dout");
  check_indices(ids, dtable.dim(0), "embedding", -1);
  on(dtable).embedding_backward(ids, dout, scale, dtable);
}

void gather_rows(const Tensor& x, const Tensor& rows, Tensor& out) {
  NIBBLE_CHECK(x.rank() == 2 && out.numel() == rows.numel() * x.dim(1), "gather_rows: shape of out");
  check_indices(rows, x.dim(0), "gather_rows");
  on(x).gather_rows(x, rows, out);
}

void scatter_add_rows(const Tensor& y, const Tensor& rows, Tensor& x) {
  NIBBLE_CHECK(x.rank() == 2 && y.numel() == rows.numel() * x.dim(1), "scatter_add_rows: shape of y");
  check_indices(rows, x.dim(0), "scatter_add_rows");
  on(x).scatter_add_rows(y, rows, x);
}

// ---- gemm.h, weight_view.h ----

namespace {

void check_product(const Shape& a, const Shape& b, const Tensor& c) {
  NIBBLE_CHECK(c.rank() == 2 && a.at(1) == b.at(0) && c.dim(0) == a[0] && c.dim(1) == b.at(1),
               "product of " + to_string(a) + " and " + to_string(b) + " into " + to_string(c.shape()));
  NIBBLE_CHECK(c.dtype() == DType::f32 || c.dtype() == DType::bf16, "results are f32 or bf16");
}

void check_epilogue(DType dtype, const Tensor& c, const LowRankEpilogue* epilogue) {
  if (epilogue == nullptr) return;
  const Shape& right = epilogue->right.shape();
  NIBBLE_CHECK(epilogue->left.dtype() == dtype, "an epilogue is of its product's dtype");
  check_product(epilogue->left.shape(), epilogue->right_transposed ? Shape{right.at(1), right.at(0)} : right, c);
}

void check_product(const Tensor& a, const Shape& b, const Tensor& c, const LowRankEpilogue* epilogue) {
  NIBBLE_CHECK(a.rank() == 2 && (a.dtype() == DType::f32 || a.dtype() == DType::bf16), "products are of f32 or bf16");
  check_product(a.shape(), b, c);
  check_epilogue(a.dtype(), c, epilogue);
}

}  // namespace

void matmul_nt(const Tensor& a, const WeightView& w, Tensor& c, bool accumulate, float alpha,
               const LowRankEpilogue* epilogue) {
  check_product(a, {w.cols(), w.rows()}, c, epilogue);
  on(c).matmul_nt(a, w, c, accumulate, alpha, epilogue);
}

void matmul_nn(const Tensor& a, const WeightView& w, Tensor& c, bool accumulate, float alpha,
               const LowRankEpilogue* epilogue) {
  check_product(a, {w.rows(), w.cols()}, c, epilogue);
  on(c).matmul_nn(a, w, c, accumulate, alpha, epilogue);
}

void matmul_tn(const Tensor& a, const Tensor& b, Tensor& c, bool accumulate, float alpha) {
  NIBBLE_CHECK(c.dtype() == DType::f32, "weight gradients are f32");
  check_product({a.dim(1), a.dim(0)}, b.shape(), c);
  on(c).matmul_tn(a, b, c, accumulate, alpha);
}

void dequantize(const WeightView& w, Tensor& out) {
  NIBBLE_CHECK(out.shape() == (Shape{w.rows(), w.cols()}), "rows of a weight");
  on(out).dequantize(w, out);
}

void block_scales(const FourBitMatrix& w, Tensor& out) {
  NIBBLE_CHECK(out.numel() == w.blocks() && w.first_row == 0, "scales of a 4-bit weight");
  on(out).block_scales(w, out);
}

// ---- norm.h ----

namespace {

void check_norm(const Tensor& x, const Tensor& y, const Tensor& w, const Tensor& statistic) {
  NIBBLE_CHECK(x.rank() == 2 && y.shape() == x.shape(),
               "norm: shapes " + to_string(x.shape()) + " and " + to_string(y.shape()));
  NIBBLE_CHECK(w.numel() == x.dim(1) && statistic.numel() == x.dim(0), "norm: shape of weight or statistic");
}

void check_norm_gradients(const Tensor& x, const Tensor& dx, const Tensor& dw) {
  NIBBLE_CHECK(dx.shape() == x.shape(), "norm: shape of dx");
  NIBBLE_CHECK(!dw || dw.numel() == x.dim(1), "norm: shape of a weight's gradient");
}

}  // namespace

void rms_norm_forward(const Tensor& x, const Tensor& w, float eps, float weight_offset, Tensor& y, Tensor& inv_rms) {
  check_norm(x, y, w, inv_rms);
  on(x).rms_norm_forward(x, w, eps, weight_offset, y, inv_rms);
}

void rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& w, float weight_offset, const Tensor& inv_rms,
                       Tensor& dx, Tensor& dw) {
  check_norm(x, dy, w, inv_rms);
  check_norm_gradients(x, dx, dw);
  on(x).rms_norm_backward(dy, x, w, weight_offset, inv_rms, dx, dw);
}

void layer_norm_forward(const Tensor& x, const Tensor& w, const Tensor& b, float eps, Tensor& y, Tensor& mean,
                        Tensor& inv_std) {
  check_norm(x, y, w, inv_std);
  NIBBLE_CHECK(mean.numel() == x.dim(0) && (!b || b.numel() == x.dim(1)), "norm: shape of mean or bias");
  on(x).layer_norm_forward(x, w, b, eps, y, mean, inv_std);
}

void layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& mean, const Tensor& inv_std,
                         Tensor& dx, Tensor& dw, Tensor& db) {
  check_norm(x, dy, w, inv_std);
  check_norm_gradients(x, dx, dw);
  NIBBLE_CHECK(mean.numel() == x.dim(0) && (!db || db.numel() == x.dim(1)), "norm: shape of mean or db");
  on(x).layer_norm_backward(dy, x, w, mean, inv_std, dx, dw, db);
}

// ---- optimizer.h ----

void adamw(Tensor& w, const Tensor& gradient, Tensor& m, Tensor& v, const AdamWParams& params) {
  NIBBLE_CHECK(same_count(w, gradient, m, v), "adamw: shapes");
  NIBBLE_CHECK(params.step >= 1, "adamw: steps count from 1");
  on(w).adamw(w, gradient, m, v, params);
}

void adamw8bit(Tensor& w, const Tensor& gradient, EightBitState& m, EightBitState& v, const AdamWParams& params) {
  const int64_t blocks = eight_bit_blocks(w.numel());
  NIBBLE_CHECK(same_count(w, gradient, m.codes, v.codes), "adamw8bit: shapes");
  NIBBLE_CHECK(m.absmax.numel() == blocks && v.absmax.numel() == blocks, "adamw8bit: blocks");
  NIBBLE_CHECK(params.step >= 1, "adamw8bit: steps count from 1");
  on(w).adamw8bit(w, gradient, m, v, params);
}

void sgd(Tensor& w, const Tensor& gradient, float lr, float weight_decay, float gradient_scale) {
  NIBBLE_CHECK(same_count(w, gradient), "sgd: shapes");
  on(w).sgd(w, gradient, lr, weight_decay, gradient_scale);
}

// ---- pick.h ----

void take_columns(const Tensor& x, const Tensor& columns, Tensor& part) {
  NIBBLE_CHECK(part.dim(0) == x.dim(0) && part.dim(1) == columns.numel() && part.dtype() == x.dtype(), "take_columns");
  check_indices(columns, x.dim(1), "take_columns");
  on(x).take_columns(x, columns, part);
}

void put_columns(const Tensor& part, const Tensor& columns, Tensor& x) {
  NIBBLE_CHECK(part.dim(0) == x.dim(0) && part.dim(1) == columns.numel(), "put_columns: shapes");
  check_indices(columns, x.dim(1), "put_columns");
  on(x).put_columns(part, columns, x);
}

void put_rows(const Tensor& part, const Tensor& rows, Tensor& x) {
  NIBBLE_CHECK(part.numel() == rows.numel() * x.dim(1), "put_rows: shapes");
  check_indices(rows, x.dim(0), "put_rows");
  on(x).put_rows(part, rows, x);
}

void gather_columns(const Tensor& x, const Tensor& columns, Tensor& out) {
  NIBBLE_CHECK(out.numel() == columns.numel() * x.dim(0), "gather_columns: shapes");
  check_indices(columns, x.dim(1), "gather_columns");
  on(x).gather_columns(x, columns, out);
}

void scatter_add_columns(const Tensor& y, const Tensor& columns, Tensor& x) {
  NIBBLE_CHECK(y.numel() == columns.numel() * x.dim(0), "scatter_add_columns: shapes");
  check_indices(columns, x.dim(1), "scatter_add_columns", -1);
  on(x).scatter_add_columns(y, columns, x);
}

void column_squares(const Tensor& x, Tensor& out) {
  NIBBLE_CHECK(out.numel() == x.dim(1), "column_squares: shapes");
  on(x).column_squares(x, out);
}

// ---- weight_norm.h ----

void row_squares(const Tensor& w, Tensor& squares) {
  NIBBLE_CHECK(squares.numel() == w.dim(0), "row_squares: shapes");
  on(w).row_squares(w, squares);
}

void low_rank_norms(const Tensor& magnitudes, const Tensor& w_squares, const Tensor& aw, const Tensor& b,
                    const Tensor& gram, float s, Tensor& norms, Tensor& factors) {
  const int64_t count = b.dim(0), r = b.dim(1);
  NIBBLE_CHECK(magnitudes.numel() == count && same_count(magnitudes, w_squares, norms, factors) &&
                   aw.numel() == r * count && gram.numel() == r * r,
               "low_rank_norms: shapes");
  on(b).low_rank_norms(magnitudes, w_squares, aw, b, gram, s, norms, factors);
}

void set_row_norms(const Tensor& lengths, Tensor& rows) {
  NIBBLE_CHECK(lengths.numel() == rows.dim(0), "set_row_norms: shapes");
  on(rows).set_row_norms(lengths, rows);
}

void scale_columns(const Tensor& x, const Tensor& factors, float offset, Tensor& y) {
  NIBBLE_CHECK(y.shape() == x.shape() && factors.numel() == x.dim(1), "scale_columns: shapes");
  on(x).scale_columns(x, factors, offset, y);
}

void scale_columns_backward(const Tensor& dy, const Tensor& x, const Tensor& norms, Tensor& dmagnitudes) {
  NIBBLE_CHECK(x.shape() == dy.shape() && norms.numel() == x.dim(1) && same_count(norms, dmagnitudes),
               "scale_columns_backward: shapes");
  on(x).scale_columns_backward(dy, x, norms, dmagnitudes);
}

}  // namespace nibble::ops
