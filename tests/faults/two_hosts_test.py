"""Two network namespaces as two hosts: a launch across them trains to the bits of one process, and a link that is cut in
the middle of a run ends it with the liveness check's message and exit code 76; the same command then goes on.

Needs root and iproute2; says so and skips where network namespaces are not permitted."""
import os
import shutil
import subprocess
import sys
import unittest

import program

ADDRESSES = {"alpha": "10.77.0.1", "beta": "10.77.0.2"}


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True)


class TwoHosts(program.FaultTest):
    def setUp(self):
        super().setUp()
        if not shutil.which("ip") or not shutil.which("mpirun"):
            self.skipTest("two hosts need iproute2 and mpirun: not installed")
        self.spaces = {host: f"nibble-{os.getpid()}-{host}" for host in ADDRESSES}
        self.addCleanup(self.remove_hosts)
        for space in self.spaces.values():
            made = ip("netns", "add", space)
            if made.returncode != 0:
                self.skipTest(f"network namespaces are not permitted here: {made.stderr.strip()}")
        alpha, beta = self.spaces.values()
        inside = ip("netns", "exec", alpha, "unshare", "--uts", "true")
        if inside.returncode != 0:  # in a changed root, for one
            self.skipTest(f"programs cannot run in network namespaces here: {inside.stderr.strip()}")
        ends = ip("link", "add", "nibble0", "netns", alpha, "type", "veth", "peer", "name", "nibble0", "netns", beta)
        if ends.returncode != 0:
            self.skipTest(f"virtual links are not permitted here: {ends.stderr.strip()}")
        for host, space in self.spaces.items():
            ip("-n", space, "link", "set", "lo", "up")
            ip("-n", space, "addr", "add", ADDRESSES[host] + "/24", "dev", "nibble0")
            ip("-n", space, "link", "set", "nibble0", "up")
        # What mpirun calls instead of ssh: the command, on the host of that address.
        self.agent = self.folder / "agent.sh"
        self.agent.write_text("#!/bin/sh\naddress=$1; shift\ncase $address in\n" + "".join(
            f"{ADDRESSES[host]}) host={host}; space={space};;\n" for host, space in self.spaces.items()) +
            'esac\nexec ip netns exec $space unshare --uts sh -c "hostname $host; $*"\n')
        self.agent.chmod(0o755)

    def remove_hosts(self):
        for space in self.spaces.values():
            for process in ip("netns", "pids", space).stdout.split():
                subprocess.run(["kill", "-9", process], check=False)
            ip("netns", "del", space)

    def start(self, recipe, *overrides, **variables):
        network = ADDRESSES["alpha"].rsplit(".", 1)[0] + ".0/24"
        env = program.environment({"OMPI_MCA_plm_rsh_agent": str(self.agent), "OMPI_MCA_btl_tcp_if_include": network,
                                   "OMPI_MCA_oob_tcp_if_include": network, "OMPI_MCA_btl": "tcp,self", **variables})
        hosts = ",".join(address + ":1" for address in ADDRESSES.values())
        words = [os.path.abspath(program.PROGRAM), "launch", "-n", "2", "--hosts", hosts, "--threads", "1", "--",
                 "train", str(recipe), *overrides]
        inside = ["ip", "netns", "exec", self.spaces["alpha"], "unshare", "--uts", "sh", "-c",
                  'hostname alpha; exec "$@"', "sh", *words]
        self.errors = self.folder / "stderr"
        with open(self.errors, "wb") as errors:
            return subprocess.Popen(inside, stdout=subprocess.DEVNULL, stderr=errors, env=env)

    def ended(self, child, code):
        self.assertEqual(child.wait(program.LIMIT), code, self.errors.read_text(errors="replace"))
        return self.errors.read_text(errors="replace")

    def wait_for_steps(self, count, child):
        metrics = self.folder / "out/metrics.jsonl"
        self.wait_until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) >= count or child.poll() is not None)
        self.assertIsNone(child.poll(), self.errors.read_text(errors="replace"))

    def wait_for_link(self):
        """Until each host answers the other: neighbours that were given up are asked again only after a while."""
        probe = "import socket, sys\ntry: socket.create_connection((sys.argv[1], 9), 1)\nexcept ConnectionRefusedError: sys.exit(7)"
        for here, there in (("alpha", "beta"), ("beta", "alpha")):
            ask = ["ip", "netns", "exec", self.spaces[here], sys.executable, "-c", probe, ADDRESSES[there]]
            self.wait_until(lambda: subprocess.run(ask, stderr=subprocess.DEVNULL, check=False).returncode == 7)

    def test_a_launch_across_hosts_trains_and_survives_a_cut_link(self):
        recipe = self.recipe(train={"accumulate": 2, "save_every": 5, "gradient_sum": "tree"},
                             adapter={"lora_dropout": 0.1}, **program.ENDLESS)
        layout = ["parallel.replicate=2", f"parallel.timeout_seconds={10 * program.LIMIT}"]
        variables, haste = self.hasty()
        child = self.start(recipe, *layout, **variables)
        self.wait_for_steps(12, child)
        ip("-n", self.spaces["alpha"], "link", "set", "nibble0", "down")
        haste.touch()
        text = self.ended(child, 76)
        self.assertRegex(text, rf"error: rank [01] on host (alpha|beta): silent for {10 * program.LIMIT} s while rank [01] waited in ")
        self.assertIn("the same command continues from the last checkpoint", text)

        self.assertTrue(self.checkpoints())
        ip("-n", self.spaces["alpha"], "link", "set", "nibble0", "up")
        self.wait_for_link()
        end = f"train.steps={self.checkpoints()[-1] + 5}"
        text = self.ended(self.start(recipe, *layout, end), 0)
        self.assertIn("continuing after step", text)
        alone = program.run("train", recipe, end, f"output.dir={self.folder / 'one'}")
        self.assertEqual(alone.code, 0, alone.err)
        self.assertEqual(self.result(), self.result(self.folder / "one"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
