#include "nibble/parallel/plan/cluster.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "nibble/core/base/error.h"
#include "nibble/core/io/json/json_file.h"
#include "nibble/core/text/matching/nearest.h"

namespace nibble {

namespace {

struct Key {
  const char* name;
  double Cluster::*at;
  bool may_be_zero;
  double most = HUGE_VAL;
};

constexpr std::array<Key, 13> kKeys = {{{"flops", &Cluster::flops, false},
                                        {"efficiency", &Cluster::efficiency, false, 1},
                                        {"half_width", &Cluster::half_width, true},
                                        {"memory_bandwidth", &Cluster::memory_bandwidth, true},
                                        {"link_bandwidth", &Cluster::link_bandwidth, false},
                                        {"node_bandwidth", &Cluster::node_bandwidth, false},
                                        {"disk_bandwidth", &Cluster::disk_bandwidth, false},
                                        {"latency", &Cluster::latency, true},
                                        {"ranks_per_node", &Cluster::ranks_per_node, false},
                                        {"overlap", &Cluster::overlap, true, 1},
                                        {"reduction", &Cluster::reduction, true},
                                        {"growth", &Cluster::growth, true},
                                        {"memory", &Cluster::memory, true}}};

}  // namespace

Cluster parse_cluster(std::string_view text, const std::string& place) {
  const nlohmann::json json = parse_json(std::string(text), place);
  if (!json.is_object()) throw UsageError("a cluster is a JSON object", "see docs/plan.md", place);
  Cluster cluster;
  std::vector<std::string> known = {"name"};
  for (const Key& key : kKeys) known.emplace_back(key.name);
  for (const auto& [name, value] : json.items()) {
    if (name == "name") {
      if (!value.is_string()) throw UsageError("must be text", "", place + ": name");
      cluster.name = value.get<std::string>();
      continue;
    }
    const auto key = std::ranges::find_if(kKeys, [&](const Key& one) { return name == one.name; });
    if (key == kKeys.end()) {
      const std::string meant = nearest(name, known);
      throw UsageError("unknown key", meant.empty() ? "see docs/plan.md" : "did you mean " + meant + "?",
                       place + ": " + name);
    }
    const double number = value.is_number() ? value.get<double>() : -1;
    if (number < 0 || (number == 0 && !key->may_be_zero)) {
      throw UsageError("must be a positive number, not " + value.dump(), "", place + ": " + name);
    }
    if (number > key->most) {
      throw UsageError("is a share, from 0 to 1, not " + value.dump(), "", place + ": " + name);
    }
    cluster.*(key->at) = number;
  }
  if (cluster.flops == 0)
    throw UsageError("is missing", "say how many operations a second a rank does", place + ": flops");
  if (cluster.link_bandwidth == 0) cluster.link_bandwidth = cluster.node_bandwidth;
  if (cluster.node_bandwidth == 0) cluster.node_bandwidth = cluster.link_bandwidth;
  return cluster;
}

std::string to_json(const Cluster& cluster) {
  nlohmann::ordered_json json = {{"name", cluster.name}};
  for (const Key& key : kKeys) json[key.name] = cluster.*(key.at);
  return json.dump(2);
}

}  // namespace nibble
