#include "nibble/parallel/experts/spread_experts.h"

#include <algorithm>
#include <set>

#include "nibble/core/base/error.h"
#include "nibble/core/ops/elementwise.h"
#include "nibble/parallel/data/ddp.h"
#include "nibble/parallel/experts/expert_parallel.h"

namespace nibble {

namespace {

/// How a rank tells the squares of elements [begin, end) of a tensor of n: one number for every piece of
/// ops::sum_of_squares that it has all of, and the elements themselves of pieces that it shares with other ranks.
struct Pieces {
  Pieces(const Range& elements, int64_t n)
      : begin(elements.begin),
        end(elements.end),
        head_end(std::min(end, (begin + kSquaresPiece - 1) / kSquaresPiece * kSquaresPiece)),
        tail_begin(end == n ? end : std::max(head_end, end / kSquaresPiece * kSquaresPiece)) {}

  int64_t whole() const { return (tail_begin - head_end + kSquaresPiece - 1) / kSquaresPiece; }
  int64_t numbers() const { return head_end - begin + whole() + end - tail_begin; }

  int64_t begin, end;
  int64_t head_end;    // up to here a piece that began on an earlier rank
  int64_t tail_begin;  // from here a piece that ends on a later one
};

/// What one rank has told, read in order.
struct Told {
  std::vector<double> numbers;
  size_t read = 0;

  double next() { return numbers.at(read++); }
};

// Of a Linear of one expert: "model.layers.0.mlp.experts.", behind which the experts' numbers are.
std::string module_of_experts(const std::string& linear) {
  size_t end = linear.size();
  for (size_t begin = end; begin != 0 && begin != std::string::npos; end = begin) {
    begin = linear.rfind('.', end - 1);
    if (linear.find_first_not_of("0123456789", begin + 1) == end) return linear.substr(0, begin + 1);
  }
  NIBBLE_CHECK(false, linear + " is of an expert");
  return linear;
}

class SpreadExperts final : public TrainedParameters {
 public:
  SpreadExperts(TrainedParameters& common, const std::vector<Parameter*>& experts, int64_t number, const Wire& wire,
                const Mesh& mesh, MemoryPool& pool)
      : common_(common),
        own_(replicate(experts, wire, mesh.expert_replicas(), pool)),
        experts_(experts.begin(), experts.end()),
        number_(number),
        mesh_(mesh) {}

  std::vector<Parameter*> parameters() const override {
    std::vector<Parameter*> all = common_.parameters();
    const std::vector<Parameter*> own = own_->parameters();
    all.insert(all.end(), own.begin(), own.end());
    return all;
  }
  void reduce_gradients(const std::vector<bool>& present) override {
    common_.reduce_gradients(present);
    own_->reduce_gradients(any_of_groups(present, mesh_.experts().size()));
  }
  void visit_partial_gradients(const std::function<void(Tensor&)>& visitor) override {
    common_.visit_partial_gradients(visitor);
  }
  Tensor tied_gradient(const Parameter& embedding) const override { return common_.tied_gradient(embedding); }
  std::vector<double> gradient_squares(const std::vector<const Parameter*>& counted) const override;
  std::vector<CheckpointSlice> slices(const Parameter& parameter, const NamedTensor& tensor) const override {
    return holder(parameter).slices(parameter, tensor);
  }
  bool is_first_copy(const Parameter& parameter) const override { return holder(parameter).is_first_copy(parameter); }

 private:
  bool is_expert(const Parameter& parameter) const { return experts_.contains(&parameter); }
  const TrainedParameters& holder(const Parameter& parameter) const { return is_expert(parameter) ? *own_ : common_; }
  int64_t count_of(int rank) const { return experts_of_rank(number_, rank, mesh_.experts().size()).size(); }
  Pieces pieces_of(const Parameter& tensor, int rank) const {
    const Range experts = experts_of_rank(number_, rank, mesh_.experts().size());
    const int64_t n = element_count(tensor.shard.global), each = n / number_;
    return {{experts.begin * each, experts.end * each}, n};
  }
  std::vector<Told> tell(const std::vector<const Parameter*>& counted) const;
  double tensor_squares(const Parameter& tensor, std::vector<Told>& told) const;

  TrainedParameters& common_;
  std::unique_ptr<TrainedParameters> own_;
  std::set<const Parameter*> experts_;
  int64_t number_;
  const Mesh& mesh_;
};

// What every rank has to tell of the experts in `counted`, in their order.
std::vector<Told> SpreadExperts::tell(const std::vector<const Parameter*>& counted) const {
  Communicator& ranks = mesh_.experts();
  std::vector<double> mine;
  std::vector<int64_t> counts(static_cast<size_t>(ranks.size()));
  for (const Parameter* parameter : counted) {
    if (!is_expert(*parameter) || !parameter->shard) continue;
    for (int r = 0; r < ranks.size(); ++r) counts[static_cast<size_t>(r)] += pieces_of(*parameter, r).numbers();
  }
  const auto linears = std::ranges::count_if(
      counted, [&](const Parameter* parameter) { return is_expert(*parameter) && !parameter->shard; });
  NIBBLE_CHECK(linears % count_of(ranks.rank()) == 0, "the same is trained of every expert");
  for (int r = 0; r < ranks.size(); ++r) {
    counts[static_cast<size_t>(r)] += linears / count_of(ranks.rank()) * count_of(r);
  }
  for (const Parameter* parameter : counted) {
    if (!is_expert(*parameter)) continue;
    if (!parameter->shard) {
      mine.push_back(ops::sum_of_squares(parameter->gradient));
      continue;
    }
    const Pieces pieces = pieces_of(*parameter, ranks.rank());
    const Tensor all = parameter->gradient.reshape({parameter->gradient.numel()});
    const auto elements = [&](int64_t begin, int64_t end) {
      const std::span<const float> some = all.rows(begin - pieces.begin, end - pieces.begin).span<const float>();
      mine.insert(mine.end(), some.begin(), some.end());
    };
    elements(pieces.begin, pieces.head_end);
    for (int64_t at = pieces.head_end; at < pieces.tail_begin; at += kSquaresPiece) {
      const int64_t end = std::min(at + kSquaresPiece, pieces.tail_begin);
      mine.push_back(ops::sum_of_squares(all.rows(at - pieces.begin, end - pieces.begin)));
    }
    elements(pieces.tail_begin, pieces.end);
  }
  std::vector<size_t> bounds = {0};
  for (const int64_t count : counts) bounds.push_back(bounds.back() + static_cast<size_t>(count) * sizeof(double));
  MemoryPool pool;
  const Tensor part = Tensor::from<double>(pool, {std::ssize(mine)}, mine);
  Tensor all = Tensor::empty(pool, {static_cast<int64_t>(bounds.back() / sizeof(double))}, DType::f64);
  ranks.all_gather("gradient norm", part, all, bounds);
  std::vector<Told> told;
  for (size_t r = 0; r < counts.size(); ++r) {
    const double* first = all.data<const double>() + bounds[r] / sizeof(double);
    told.push_back({{first, first + counts[r]}});
  }
  return told;
}

// Of a tensor of all experts.
double SpreadExperts::tensor_squares(const Parameter& tensor, std::vector<Told>& told) const {
  MemoryPool pool;
  double sum = 0;
  std::vector<float> shared;  // the elements of a piece that several ranks have
  const auto end_piece = [&] {
    if (!shared.empty()) sum += ops::sum_of_squares(Tensor::from<float>(pool, {std::ssize(shared)}, shared));
    shared.clear();
  };
  for (size_t r = 0; r < told.size(); ++r) {
    const Pieces pieces = pieces_of(tensor, static_cast<int>(r));
    for (int64_t i = pieces.begin; i < pieces.head_end; ++i) shared.push_back(static_cast<float>(told[r].next()));
    if (pieces.head_end % kSquaresPiece == 0) end_piece();
    for (int64_t i = 0; i < pieces.whole(); ++i) sum += told[r].next();
    for (int64_t i = pieces.tail_begin; i < pieces.end; ++i) shared.push_back(static_cast<float>(told[r].next()));
  }
  end_piece();
  return sum;
}

std::vector<double> SpreadExperts::gradient_squares(const std::vector<const Parameter*>& counted) const {
  std::vector<const Parameter*> of_all;
  std::ranges::copy_if(counted, std::back_inserter(of_all), [&](const Parameter* one) { return !is_expert(*one); });
  const std::vector<double> common = common_.gradient_squares(of_all);
  std::vector<Told> told = tell(counted);
  std::vector<double> squares;
  auto next = common.begin();
  for (auto one = counted.begin(); one != counted.end();) {
    if (!is_expert(**one)) {
      squares.push_back(*next++);
    } else if ((*one)->shard) {
      squares.push_back(tensor_squares(**one, told));
    } else {  // Linears: as one rank has them, which has the adapters of all experts among those of the first
      const std::string module = module_of_experts((*one)->name);
      const auto end =
          std::find_if(one, counted.end(), [&](const Parameter* other) { return !other->name.starts_with(module); });
      const int64_t own = std::count_if(one, end, [&](const Parameter* other) { return is_expert(*other); });
      const int64_t each = own / count_of(mesh_.experts().rank());
      for (int64_t linear = 0; one != end; ++one) {
        if (!is_expert(**one))
          squares.push_back(*next++);
        else if (linear++ < each)
          squares.push_back(told[0].next());
      }
      for (size_t r = 0; r < told.size(); ++r) {
        const int64_t left = each * (count_of(static_cast<int>(r)) - (r == 0 ? 1 : 0));
        for (int64_t i = 0; i < left; ++i) squares.push_back(told[r].next());
      }
      continue;
    }
    ++one;
  }
  return squares;
}

}  // namespace

std::unique_ptr<TrainedParameters> with_spread_experts(TrainedParameters& common,
                                                       const std::vector<Parameter*>& experts, int64_t number,
                                                       const Wire& wire, const Mesh& mesh, MemoryPool& pool) {
  return std::make_unique<SpreadExperts>(common, experts, number, wire, mesh, pool);
}

}  // namespace nibble
