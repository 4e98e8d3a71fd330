# SPDX-License-Identifier: Apache-2.0
"""`signalbox eval --url`: all problems of the model, many at a time."""

import re
import subprocess
import unittest

from server import MODEL, PROGRAM, ROOT, Server, problems

PARALLEL = 200


class Eval(unittest.TestCase):
    def test_all_problems(self):
        with Server("--max-running-requests", str(PARALLEL), name="eval") as server:
            done = subprocess.run(
                [ROOT / PROGRAM, "eval", "--url", server.url, "--data", MODEL / "eval.jsonl",
                 "--parallel", str(PARALLEL)],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
            )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stdout)
        found = re.search(r"accuracy (\S+) \(\d+ of (\d+)\)", done.stdout)
        self.assertEqual(int(found.group(2)), len(problems()), done.stdout)
        self.assertGreaterEqual(float(found.group(1)), 0.99, done.stdout)
