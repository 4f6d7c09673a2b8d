#include "nibble/adapters/tuners/decomposition.h"

#include <Eigen/Dense>
#include <cmath>

#include "nibble/core/base/error.h"
#include "nibble/core/ops/elementwise.h"

namespace nibble {

namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using FloatMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Matrix wide(const Tensor& w) {
  return Eigen::Map<const FloatMatrix>(w.data<const float>(), w.dim(0), w.dim(1)).cast<double>();
}

Tensor narrow(const Matrix& m, MemoryPool& pool) {
  Tensor result = Tensor::empty(pool, {m.rows(), m.cols()}, DType::f32, "low-rank factor");
  Eigen::Map<FloatMatrix>(result.data<float>(), m.rows(), m.cols()) = m.cast<float>();
  return result;
}

void check_rank(const Tensor& w, int64_t r) {
  if (r >= 1 && r <= std::min(w.dim(0), w.dim(1))) return;
  throw UsageError("a matrix " + to_string(w.shape()) + " has no part of rank " + std::to_string(r),
                   "use a lower rank (rank_pattern for one module)");
}

Matrix orthonormal(const Matrix& m) {
  const Eigen::HouseholderQR<Matrix> qr(m);
  return qr.householderQ() * Matrix::Identity(m.rows(), m.cols());
}

/// Of a matrix with few rows.
TruncatedSvd svd_of(const Matrix& w, int64_t r, const Matrix* left, MemoryPool& pool) {
  const bool by_rows = w.rows() <= w.cols();
  const Matrix gram = by_rows ? Matrix(w * w.transpose()) : Matrix(w.transpose() * w);
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(gram);
  if (solver.info() != Eigen::Success) throw NumericError("singular values", "of a weight do not converge", "");
  Matrix near = solver.eigenvectors().rowwise().reverse().leftCols(r);  // largest first
  Matrix far = by_rows ? Matrix(w.transpose() * near) : Matrix(w * near);
  TruncatedSvd result;
  const double largest = far.col(0).norm();
  for (int64_t i = 0; i < r; ++i) {
    const double s = far.col(i).norm();
    result.s.push_back(s);
    const bool is_zero = s <= largest * 1e-12;
    far.col(i) *= is_zero ? 0.0 : 1.0 / s;
    if (is_zero) result.s.back() = 0;
  }
  Matrix u = by_rows ? near : far;
  const Matrix& v = by_rows ? far : near;
  if (left) u = *left * u;
  result.u = narrow(u, pool);
  result.vt = narrow(v.transpose(), pool);
  return result;
}

}  // namespace

TruncatedSvd truncated_svd(const Tensor& w, int64_t r, MemoryPool& pool) {
  check_rank(w, r);
  return svd_of(wide(w), r, nullptr, pool);
}

TruncatedSvd randomized_svd(const Tensor& w, int64_t r, int64_t iterations, uint64_t seed, uint64_t purpose,
                            MemoryPool& pool) {
  check_rank(w, r);
  const Matrix m = wide(w);
  Tensor start = Tensor::empty(pool, {w.dim(1), r}, DType::f32, "start of a randomized SVD");
  ops::fill_normal(start, 1.0f, seed, purpose);
  Matrix q = orthonormal(m * wide(start));
  for (int64_t i = 0; i < iterations; ++i) {
    q = orthonormal(m.transpose() * q);
    q = orthonormal(m * q);
  }
  return svd_of(q.transpose() * m, r, &q, pool);
}

LowRankFactors split_evenly(const TruncatedSvd& svd, double s, MemoryPool& pool) {
  LowRankFactors result{svd.vt.clone(pool), svd.u.clone(pool)};
  const int64_t r = result.a.dim(0), in = result.a.dim(1), out = result.b.dim(0);
  for (int64_t i = 0; i < r; ++i) {
    const auto root = static_cast<float>(std::sqrt(svd.s[static_cast<size_t>(i)] / s));
    for (int64_t j = 0; j < in; ++j) result.a.data<float>()[i * in + j] *= root;
    for (int64_t j = 0; j < out; ++j) result.b.data<float>()[j * r + i] *= root;
  }
  return result;
}

LowRankFactors first_of_qr(const Tensor& w, int64_t r, MemoryPool& pool) {
  check_rank(w, r);
  const Eigen::HouseholderQR<Matrix> qr(wide(w));
  const Matrix upper = qr.matrixQR().topRows(r).template triangularView<Eigen::Upper>();
  const Matrix q = qr.householderQ() * Matrix::Identity(w.dim(0), r);
  return {narrow(upper, pool), narrow(q, pool)};
}

}  // namespace nibble
