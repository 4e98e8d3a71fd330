# SPDX-License-Identifier: Apache-2.0
"""The rules of check_tree.py on small trees."""

import pathlib
import tempfile
import unittest

import check_tree

LICENCE = "// SPDX-License-Identifier: Apache-2.0\n"
BODY = "  x();\n" * 100

LONG_FUNCTIONS = {
    "free function": "int F(int a) {\n" + BODY + "}\n",
    "signature over two lines": "int F(int a,\n      int b) {\n" + BODY + "}\n",
    "method in a class": "class C {\n  int F() const {\n" + BODY.replace("  ", "    ") + "  }\n};\n",
    "test": "TEST(A, B) {\n" + BODY + "}\n",
    "in a namespace": "namespace n {\nvoid F() {\n" + BODY + "}\n}  // namespace n\n",
    "constructor": "C::C(int a)\n    : a_(a) {\n" + BODY + "}\n",
}
SHORT_FUNCTIONS = {
    "namespace": "namespace n {\n" + "int a;\n" * 120 + "}\n",
    "class": "class C {\n" + "  int F();\n" * 120 + "};\n",
    "table": "constexpr int k[] = {\n" + "    1,\n" * 120 + "};\n",
    "rows with functions": "const Row k[] = {\n" + '    {"a", [](int i) {\n       return i;\n     }},\n' * 40 + "};\n",
    "many functions": "int F() {\n  return 1;\n}\n" * 60,
}


class CheckTreeTest(unittest.TestCase):
    def run_check(self, check, **texts):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder, "src")
            source.mkdir()
            for name, text in texts.items():
                (source / f"{name}.cc").write_text(text)
            return list(check(pathlib.Path(folder)))

    def test_long_functions(self):
        for name, text in LONG_FUNCTIONS.items():
            with self.subTest(name):
                found = self.run_check(check_tree.sizes, a=text)
                self.assertEqual(len(found), 1, found)
                self.assertIn("function of 10", found[0])

    def test_short_functions(self):
        for name, text in SHORT_FUNCTIONS.items():
            with self.subTest(name):
                self.assertEqual(self.run_check(check_tree.sizes, a=text), [])

    def test_long_file(self):
        self.assertIn("1001 lines", self.run_check(check_tree.sizes, a="//\n" * 1001)[0])

    def test_names(self):
        asks = 'if (name == "deepep") {\n'
        self.assertEqual(len(self.run_check(check_tree.names, planner=asks)), 1)
        self.assertEqual(self.run_check(check_tree.names, contract_table=asks, planner_test=asks), [])
        self.assertEqual(self.run_check(check_tree.names, planner="// as mori does\n"), [])

    def test_paths(self):
        self.assertEqual(len(self.run_check(check_tree.paths, a="/home" + "/me/models\n")), 1)
        self.assertEqual(self.run_check(check_tree.paths, a='"a/home" "https://x.org/workers"\n'), [])

    def test_words(self):
        self.assertEqual(self.run_check(check_tree.words, a=LICENCE), [])
        self.assertEqual(len(self.run_check(check_tree.words, a="int a;\n")), 1)
        self.assertEqual(len(self.run_check(check_tree.words, a=LICENCE + "// TODO\n")), 1)


if __name__ == "__main__":
    unittest.main()
