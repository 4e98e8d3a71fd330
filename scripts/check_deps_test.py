# SPDX-License-Identifier: Apache-2.0
"""Each rule of check_deps.py fires on a small tree that breaks it, and on nothing else."""

import pathlib
import tempfile
import unittest

import check_deps

ORDER = " ".join(check_deps.MODULES)
GOOD = {
    "CMakeLists.txt": f"foreach(module {ORDER})\nendforeach()\n",
    "base/CMakeLists.txt": "signalbox_module(base LIBS fmt::fmt)\n",
    "base/a.h": "#pragma once\n#include <vector>\n",
    "base/heavy.h": "#include <nlohmann/json.hpp>\n",
    "base/over_heavy.h": '#include "signalbox/base/heavy.h"\n',
    "mesh/CMakeLists.txt": "signalbox_module(mesh DEPS base)\n",
    "mesh/m.cc": '#include "signalbox/base/a.h"\n#include <nlohmann/json.hpp>\n',
    "comm/CMakeLists.txt": "# DEPS cli\nsignalbox_module(comm DEPS mesh\n  LIBS x)\n",
    "comm/c.cc": '#include "signalbox/base/a.h"\n#ifdef SIGNALBOX_HAVE_MPI\n#endif\n',
    "text/CMakeLists.txt": "signalbox_module(text DEPS base)\n",
    "text/t.cc": "#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)\n#endif\n",
}


class CheckDepsTest(unittest.TestCase):
    def violations(self, changes):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in (GOOD | changes).items():
                (root / name).parent.mkdir(exist_ok=True)
                (root / name).write_text(text)
            return check_deps.check(root)

    def assert_one(self, expected, name, text):
        found = self.violations({name: text})
        self.assertEqual(len(found), 1, found)
        self.assertIn(expected, found[0])

    def test_good_tree_has_none(self):
        self.assertEqual(self.violations({}), [])

    def test_deps_must_be_earlier(self):
        self.assert_one(
            "base may not depend on mesh", "base/CMakeLists.txt", "signalbox_module(base DEPS mesh)"
        )

    def test_deps_must_be_modules(self):
        self.assert_one(
            "which is no module", "mesh/CMakeLists.txt", "signalbox_module(mesh DEPS base fmt)"
        )

    def test_restricted_module(self):
        self.assert_one(
            "text may not depend on mesh; allowed: base",
            "text/CMakeLists.txt",
            "signalbox_module(text DEPS base mesh)",
        )

    def test_module_must_be_known(self):
        self.assert_one("unknown module extra", "extra/CMakeLists.txt", "signalbox_module(extra)")

    def test_order_is_the_build_order(self):
        self.assert_one("not listed in the order", "CMakeLists.txt", "foreach(module mesh base)")

    def test_include_needs_a_dependency(self):
        self.assert_one(
            "mesh/m.cc:2: mesh includes signalbox/comm/c.h",
            "mesh/m.cc",
            '\n#include "signalbox/comm/c.h"\n',
        )

    def test_include_is_root_relative(self):
        self.assert_one('write "signalbox/mesh/m.h"', "mesh/m.cc", '#include "m.h"\n')

    def test_heavy_header_reaches_another_module(self):
        self.assert_one(
            "mesh/m.cc:1: signalbox/base/over_heavy.h brings nlohmann/json.hpp along",
            "mesh/m.cc",
            '#include "signalbox/base/over_heavy.h"\n',
        )

    def test_heavy_header_inside_a_module(self):
        private = {"mesh/m.h": "#include <yaml-cpp/yaml.h>\n", "mesh/m.cc": '#include "signalbox/mesh/m.h"\n'}
        self.assertEqual(self.violations(private), [])

    def test_feature_switch(self):
        self.assert_one(
            "text/t.cc:1: switch '#ifdef SIGNALBOX_FAST'",
            "text/t.cc",
            "#ifdef SIGNALBOX_FAST\n#endif\n",
        )

    def test_commented_out_code(self):
        self.assert_one("switch '#if 0'", "text/t.cc", "#if 0\n#endif\n")


if __name__ == "__main__":
    unittest.main()
