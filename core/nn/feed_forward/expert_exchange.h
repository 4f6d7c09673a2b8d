#pragma once
// The seam for experts of which only some are here (expert parallelism): rows of tokens go where their experts are, and
// what these compute comes back. Core knows neither how many ranks there are nor which experts they have.

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "nibble/core/nn/parameter.h"

namespace nibble {

/// The rows of one pass on their way. Own rows lie in the order of all experts, so that those for one rank lie
/// together; what comes lies rank by rank, each rank's rows in the order of the experts here.
struct ExpertRoute {
  std::vector<int64_t> sent, received;  ///< [ranks + 1]: where the rows of a rank begin among own ones, among those
                                        ///< that come
  std::vector<std::vector<int64_t>> counts;  ///< of the rows of every rank: how many are of each expert here

  int64_t ranks() const { return static_cast<int64_t>(counts.size()); }
};

/// All ranks that share the experts make the same calls.
class ExpertExchange {
 public:
  virtual ~ExpertExchange() = default;
  /// Those of a layer's experts that are here.
  virtual Range here(int64_t experts) const = 0;
  /// The rank's memory.
  virtual MemoryPool& pool() const = 0;

  /// counts: own rows of every expert.
  virtual ExpertRoute route(std::span<const int64_t> counts) const = 0;
  /// Rows [sent.back(), n] in the order of all experts -> those that come [received.back(), n]. `what` names them.
  virtual Tensor send(std::string_view what, const Tensor& rows, const ExpertRoute& route) const = 0;
  /// The opposite: own rows, as the ranks with their experts give them back.
  virtual Tensor send_back(std::string_view what, const Tensor& rows, const ExpertRoute& route) const = 0;
  /// run(r) adds to the gradients of `parameters` what comes of the rows of rank r: calls it for all ranks and leaves
  /// the sum, added in the order in which the ranks' gradients of other parameters are.
  virtual void sum_gradients(const std::vector<Parameter*>& parameters, int64_t ranks,
                             const std::function<void(int64_t)>& run) const = 0;
};

}  // namespace nibble
