#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the modules under src/signalbox to their order.

usage: scripts/check_deps.py [ROOT]

Prints every violation as file:line: message and exits 1 when there is one. Checked are the DEPS that each
module's CMakeLists.txt declares, what its files include, heavy headers that would reach other modules, and
feature switches.
"""

import pathlib
import re
import sys

# In dependency order: a module may use the modules above it, or only those its entry names.
MODULES = {
    "base": None,
    "tensor": None,
    "mesh": {"base"},  # pure: layouts are values, tested without a device
    "comm": None,
    "ops": {"base", "tensor"},  # an operation knows nothing of ranks
    "a2a": None,
    "moe": None,
    "plan": {"base", "tensor", "mesh", "a2a", "moe"},  # derives steps, never runs them
    "model": None,
    "cache": None,
    "engine": None,
    "text": {"base"},
    "server": None,
    "cli": None,
}

# Third-party headers that cost seconds to compile or leak names: they stay inside the module that needs them.
HEAVY = re.compile(r"^(nlohmann/json\.hpp|yaml-cpp/|boost/|pcre2|utf8proc|mpi\.h|xgrammar/)")

# Only where a back end really is or is not compiled in; everyone else asks at run time.
SWITCHES_ALLOWED = {"ops", "comm"}

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
CONDITION = re.compile(r"^\s*#\s*(?:if|ifdef|ifndef|elif)\b(.*)")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


def declared_deps(module_dir):
    """Returns {module name: [DEPS]} for the signalbox_module() calls of one CMakeLists.txt."""
    text = re.sub(r"#.*", "", (module_dir / "CMakeLists.txt").read_text())
    calls = {}
    for call in re.finditer(r"signalbox_module\(([^)]*)\)", text):
        name, *words = call.group(1).split()
        deps, collecting = [], False
        for word in words:
            if word.isupper():
                collecting = word == "DEPS"
            elif collecting:
                deps.append(word)
        calls[name] = deps
    return calls


def closure(deps, module):
    """Every module that `module` depends on, directly or not."""
    seen, todo = set(), [module]
    while todo:
        for dep in deps.get(todo.pop(), []):
            if dep not in seen:
                seen.add(dep)
                todo.append(dep)
    return seen


def check_declarations(root, deps):
    order = list(MODULES)
    listing = (root / "CMakeLists.txt").read_text()
    built = re.search(r"foreach\(module ([^)]*)\)", listing)
    if not built or built.group(1).split() != order:
        yield f"{root}/CMakeLists.txt:1: modules are not listed in the order {' '.join(order)}"
    for module, names in deps.items():
        where = f"{root}/{module}/CMakeLists.txt:1"
        if module not in MODULES:
            yield f"{where}: unknown module {module}; add it to MODULES in scripts/check_deps.py"
            continue
        allowed = allowed_for(module)
        for name in names:
            if name not in MODULES:
                yield f"{where}: DEPS names {name}, which is no module"
            elif name not in allowed:
                yield f"{where}: {module} may not depend on {name}; allowed: {listed(allowed)}"


def allowed_for(module):
    order = list(MODULES)
    above = order[: order.index(module)]
    only = MODULES[module]
    return [name for name in above if only is None or name in only]


def listed(names):
    return ", ".join(names) or "none"


def includes_of(path):
    """Yields (line number, quote, header) of a file's include lines."""
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        match = INCLUDE.match(line)
        if match:
            yield number, *match.groups()


class HeavyHeaders:
    """Which third-party heavy header, if any, a header of ours brings along."""

    def __init__(self, root):
        self.root = root
        self.known = {}

    def behind(self, header):
        if HEAVY.match(header):
            return header
        if not header.startswith("signalbox/"):
            return None
        if header not in self.known:
            self.known[header] = None  # a cycle ends here
            path = self.root / header.removeprefix("signalbox/")
            inner = [self.behind(h) for _, _, h in includes_of(path)] if path.exists() else []
            self.known[header] = next(filter(None, inner), None)
        return self.known[header]


def check_includes(module, path, reachable, heavy):
    for number, quote, header in includes_of(path):
        where = f"{path}:{number}"
        if not header.startswith("signalbox/"):
            if quote == '"':
                yield f'{where}: include is not root-relative: write "signalbox/{module}/{header}"'
            continue
        target = header.split("/")[1]
        if target == module:
            continue
        if target not in reachable:
            yield f"{where}: {module} includes {header}, but may use only {listed(sorted(reachable))}"
        if heavy.behind(header):
            yield f"{where}: {header} brings {heavy.behind(header)} along; keep that inside {target}"


def check_switches(path):
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        match = CONDITION.match(line)
        if not match:
            continue
        # What the compiler itself defines (architecture, sanitizer) is a fact, not a choice of ours.
        names = set(IDENTIFIER.findall(re.sub(r"//.*|/\*.*?\*/", "", match.group(1)))) - {"defined"}
        if not names or not all(name.startswith("__") for name in names):
            allowed = listed(sorted(SWITCHES_ALLOWED))
            yield f"{path}:{number}: switch '{line.strip()}'; only {allowed} may have one"


def check_files(root, deps):
    heavy = HeavyHeaders(root)
    for module in deps:
        if module not in MODULES:
            continue
        reachable = closure(deps, module) & set(allowed_for(module))
        for path in sorted((root / module).rglob("*")):
            if path.suffix not in {".cc", ".h", ".cu", ".cuh"}:
                continue
            yield from check_includes(module, path, reachable, heavy)
            if module not in SWITCHES_ALLOWED:
                yield from check_switches(path)


def check(root):
    """Returns the violations in the source tree `root` (the folder that holds the modules)."""
    deps = {}
    for listing in sorted(root.glob("*/CMakeLists.txt")):
        deps.update(declared_deps(listing.parent))
    return [*check_declarations(root, deps), *check_files(root, deps)]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "src/signalbox")
    violations = check(root)
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
