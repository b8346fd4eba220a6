#!/usr/bin/env python3
"""tidy.py BUILD_DIR FILE...: clang-tidy on each file, as many at once as there are CPUs. Prints what it says; exit code 1 if it said anything.

A file that was clean is not looked at again until something that clang-tidy sees has changed: the file, a header it includes, its compile command,
.clang-tidy or clang-tidy itself. Clean files are remembered in the user's cache folder ($XDG_CACHE_HOME/coppice-tidy), so another clone of the
repository knows them too. --self-test plants faults and checks that each is found.
"""
import concurrent.futures
import contextlib
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "coppice-tidy"
FORGOTTEN_AFTER_DAYS = 30


def said_by(command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options)


class Tidy:
    def __init__(self, root, build, cache):
        self.root, self.build, self.cache = root, build, cache
        self.commands = {entry["file"]: entry for entry in json.loads((build / "compile_commands.json").read_text())}
        self.tool = said_by(["clang-tidy", "--version"]).stdout + (root / ".clang-tidy").read_text()
        self.looked_at = 0

    def key(self, file):
        """What clang-tidy sees of a file, as one number; None where the compiler cannot say, or this build leaves the file out."""
        entry = self.commands.get(str(file))
        if entry is None:
            return None
        words = shlex.split(entry["command"])
        words = [word for word in words[: words.index("-o")] if "ccache" not in word]
        found = said_by([*words, "-M", "-MT", "x", str(file)], cwd=entry["directory"])
        if found.returncode != 0:
            return None
        seen = hashlib.sha256((self.tool + " ".join(words)).replace(str(self.root), ".").encode())
        for name in sorted(set(shlex.split(found.stdout.replace("\\\n", " "))[1:])):
            path = pathlib.Path(os.path.normpath(pathlib.Path(entry["directory"]) / name))
            if path.is_relative_to(self.root):
                seen.update(str(path.relative_to(self.root)).encode() + b"\0" + path.read_bytes())
            else:
                seen.update(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}\n".encode())
        return seen.hexdigest()

    def check(self, file):
        """What clang-tidy says of a file; empty for a clean one."""
        key = self.key(file) if self.cache else None
        known = self.cache / key if key else None
        if known and known.exists():
            known.touch()
            return ""
        self.looked_at += 1
        run = said_by(["clang-tidy", "--quiet", "-p", str(self.build), str(file)])
        if run.returncode != 0 or run.stdout.strip():
            return run.stdout or run.stderr
        if known:
            known.touch()
        return ""

    def forget_old(self):
        for old in self.cache.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another run was faster
                if time.time() - old.stat().st_mtime > FORGOTTEN_AFTER_DAYS * 86400:
                    old.unlink()

    def check_all(self, files):
        try:
            self.cache.mkdir(parents=True, exist_ok=True)
            self.forget_old()
        except OSError as error:
            print(f"tidy: every file is looked at: {error}", file=sys.stderr)
            self.cache = None
        with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            return [text for text in pool.map(self.check, files) if text]


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder).resolve()
        config = (ROOT / ".clang-tidy").read_text()
        (root / ".clang-tidy").write_text(config)
        source, header, cache = root / "src" / "a.cpp", root / "src" / "a.h", root / "cache"
        source.parent.mkdir()
        command = f"c++ -std=c++20 -I{root}/src -o a.o -c {source}"
        (root / "compile_commands.json").write_text(json.dumps([{"directory": str(root), "file": str(source), "command": command}]))
        source.write_text('#include "a.h"\nint twice(int x) {\n  return kTwo * x;\n}\n')
        clean = "#pragma once\n#include <vector>\nint twice(int x);\ninline constexpr int kTwo = 2;\n"

        def run(text):
            header.write_text(text)
            tidy = Tidy(root, root, cache)
            return "".join(tidy.check_all([source])), tidy.looked_at

        assert run(clean) == ("", 1), "a clean file is looked at"
        assert run(clean) == ("", 0), "a clean file is not looked at again"
        faults = {"inline bool none(const std::vector<int>& v) { return v.size() == 0; }\n": "readability-container-size-empty",
                  "#define SUM 1 + 2\n": "bugprone-macro-parentheses",
                  "struct _Reserved {};\n": "reserved-identifier", "#define __RESERVED 1\n": "reserved-macro-identifier"}
        for fault, check in faults.items():
            for _ in range(2):  # a fault is found as often as it is looked for
                said, looked_at = run(clean + fault)
                assert check in said and looked_at == 1, (fault, said)
        assert run(clean) == ("", 0), "what was clean before is known"
        left_out = source.with_name("b.cpp")
        left_out.write_text("struct _Reserved {};\n")
        for _ in range(2):  # it has no command: clang-tidy takes that of a file like it
            tidy = Tidy(root, root, cache)
            said = "".join(tidy.check_all([left_out]))
            assert "b.cpp:1:8: error" in said and "no such file" not in said and tidy.looked_at == 1, ("a file that the build leaves out is looked at", said)
        (root / ".clang-tidy").write_text(config + "# another one\n")
        assert run(clean) == ("", 1), "another configuration, another look"
    print("tidy: clean files are remembered, every planted fault is found")


if __name__ == "__main__":
    if said_by(["sh", "-c", "command -v clang-tidy"]).returncode != 0:
        print("skipped: no clang-tidy here")
        sys.exit(77)
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    faults = Tidy(ROOT, pathlib.Path(sys.argv[1]).resolve(), CACHE).check_all([ROOT / name for name in sys.argv[2:]])
    print("\n".join(faults), end="")
    sys.exit(1 if faults else 0)
