// nibble doctor: what this machine is good for, and what to fix.

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "nibble/cli/commands.h"
#include "nibble/cli/printing/say.h"
#include "nibble/recipes/environment/doctor.h"

namespace nibble::cli {

namespace {

struct DoctorFlags {
  std::string directory = ".";
  bool quick = false, json = false;
};

void run(const DoctorFlags& flags) {
  const std::vector<Finding> findings = examine_machine(flags.directory, !flags.quick);
  if (flags.json) {
    nlohmann::ordered_json output = nlohmann::ordered_json::array();
    for (const Finding& finding : findings) {
      output.push_back({{"name", finding.name}, {"value", finding.value}, {"advice", finding.advice}});
    }
    return print_json({{"findings", output}});
  }
  int advised = 0;
  for (const Finding& finding : findings) {
    say(stdout, "%-14s %s", finding.name.c_str(), finding.value.c_str());
    if (finding.advice.empty()) continue;
    say(stdout, "%-14s -> %s", "", finding.advice.c_str());
    ++advised;
  }
  std::printf(advised == 0 ? "nothing to fix\n" : "%d to look at\n", advised);
}

}  // namespace

void add_doctor_command(Command& nibble) {
  auto flags = std::make_shared<DoctorFlags>();
  Command command = nibble.subcommand("doctor", "What this machine is good for, and what to fix before a long run");
  command.option("--dir", flags->directory, "Where runs will be written").not_empty().shows_default();
  command.flag("--quick", flags->quick, "Measure nothing");
  command.flag("--json", flags->json, "One JSON object on stdout");
  command.footer("Example: nibble doctor --dir runs");
  command.run([flags] { run(*flags); });
}

}  // namespace nibble::cli
