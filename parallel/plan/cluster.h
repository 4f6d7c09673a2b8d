#pragma once
// A machine or a cluster as a plan sees it: a few constants, written by hand, measured, or fitted to known runs.

#include <string>
#include <string_view>

namespace nibble {

struct Cluster {
  std::string name;
  double flops = 0;             ///< of a rank, a second, as sold or measured
  double efficiency = 0.5;      ///< share of `flops` that the products of a very wide model reach
  double half_width = 0;        ///< model width at which the share is half of that
  double memory_bandwidth = 0;  ///< bytes a second of a rank's memory; 0: updates are not counted
  double link_bandwidth = 0;    ///< bytes a second between the ranks of a node, each way, of a rank
  double node_bandwidth = 0;    ///< bytes a second between nodes, each way, of a whole node
  double disk_bandwidth = 1e9;  ///< bytes a second of a rank to and from the file of activations
  double latency = 5e-6;        ///< seconds of one hop
  double ranks_per_node = 8;
  double overlap = 0.3;  ///< of communication and computation, the share of the shorter that is not hidden
  double reduction = 1;  ///< time of a sum over ranks, of that of a gather which sends as many bytes
  double growth = 0.02;  ///< time added for each doubling beyond 128 ranks: stragglers
  double memory = 0;     ///< bytes of a rank; 0: not said

  /// Share of `flops` that products of a model of this width reach.
  double share(double width) const { return efficiency * width / (width + half_width); }
};

/// A cluster from JSON: the keys are the members' names; all but `flops` may be absent. Throws InputError naming
/// `place` for what is no JSON, UsageError for an unknown key (with the nearest known one) or a value out of range.
Cluster parse_cluster(std::string_view json, const std::string& place);

/// The same as JSON, every key.
std::string to_json(const Cluster& cluster);

}  // namespace nibble
