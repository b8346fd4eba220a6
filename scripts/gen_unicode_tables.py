#!/usr/bin/env python3
"""Writes src/text/unicode_data.cpp: character classes and normalisation data, asked from the reference tokenizers.

The classes come from the regex engine of the tiktoken package (Rust crate `regex`) and must agree with the one of the
tokenizers package (Oniguruma); normalisation comes from the NFC and NFD of the tokenizers package. Nothing is taken
from a Unicode data file, so our scanners see the same version as the references do.

usage: gen_unicode_tables.py [--check]     (in the test virtualenv; --check compares with the committed file)
"""
import importlib.metadata
import pathlib
import sys

import tiktoken
from tokenizers import Regex, normalizers, pre_tokenizers

OUT = pathlib.Path(__file__).resolve().parent.parent / "src/text/unicode_data.cpp"
ALL = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
# Bit of the class byte, regex class. Must match CharClass in src/text/unicode.h.
CLASSES = [(1, r"[\p{Lu}\p{Lt}]"), (2, r"\p{Ll}"), (4, r"[\p{Lm}\p{Lo}]"), (8, r"\p{M}"), (16, r"\p{N}"),
           (32, r"\s"), (64, r"\p{Han}")]
DIGITS_STEP = 128
# One mark of every combining class from low to high, to sort all others against.
LADDER = [0x0338, 0x16FF0, 0x093C, 0x3099, 0x094D, 0x05B0, 0x05B1, 0x05B2, 0x05B3, 0x05B4, 0x05B5, 0x05B6, 0x05B7,
          0x05B8, 0x05B9, 0x05BB, 0x05BC, 0x05BD, 0x05BF, 0x05C1, 0x05C2, 0xFB1E, 0x064B, 0x064C, 0x064D, 0x0618,
          0x0619, 0x061A, 0x0651, 0x0652, 0x0670, 0x0711, 0x0C55, 0x0C56, 0x0E38, 0x0E48, 0x0EB8, 0x0EC8, 0x0F71,
          0x0F72, 0x0F74, 0x0321, 0x1DCE, 0x031B, 0x1DFA, 0x0316, 0x059A, 0x302E, 0x1D16D, 0x05AE, 0x0301, 0x0315,
          0x035C, 0x035D, 0x0345]


def rust_class(pattern):
    encoding = tiktoken.Encoding("probe", pat_str=pattern, special_tokens={},
                                 mergeable_ranks={bytes([b]): b for b in range(256)})
    found = set()
    for i in range(0, len(ALL), 65536):
        found.update(encoding.decode_bytes(encoding.encode_ordinary("".join(ALL[i:i + 65536]))).decode())
    return found


def oniguruma_class(pattern):
    split = pre_tokenizers.Split(Regex(pattern), behavior="removed", invert=True)
    found = set()
    for i in range(0, len(ALL), 65536):
        for piece, _ in split.pre_tokenize_str("".join(ALL[i:i + 65536])):
            found.update(piece)
    return found


def class_runs():
    """Run-length list of (first code point, class byte)."""
    value = bytearray(0x110000)
    for bit, pattern in CLASSES:
        rust, onig = rust_class(pattern), oniguruma_class(pattern)
        if rust != onig:
            sys.exit(f"{pattern}: tiktoken and tokenizers disagree on {len(rust ^ onig)} code points")
        for char in rust:
            value[ord(char)] |= bit
    # The Digits step of tokenizers asks Rust's standard library, which may know a newer Unicode.
    digits = pre_tokenizers.Digits(individual_digits=True)
    for char in ALL:
        if len(digits.pre_tokenize_str(f"a{char}a")) > 1:
            value[ord(char)] |= DIGITS_STEP
    # str.isspace(), which Kimi's wrapper asks, is derived in unicode.h.
    if any(char.isspace() != (value[ord(char)] & 32 != 0 or "\x1c" <= char <= "\x1f") for char in ALL):
        sys.exit("str.isspace() is no longer \\s and U+001C..U+001F")
    return [(c, value[c]) for c in range(0x110000) if c == 0 or value[c] != value[c - 1]]


def combining_classes(nfd):
    """{code point: 1-based step on LADDER} for every mark that canonical ordering moves."""
    known = lambda mark: nfd("\u0345" + mark) != "\u0345" + mark or mark == "\u0345"
    ladder = [mark for mark in map(chr, LADDER) if known(mark)]
    steps = {}
    for char in ALL:
        if nfd(char) != char:
            continue
        moves_before_last = nfd("\u0345" + char) != "\u0345" + char
        moves_behind_first = nfd(char + "\u0338") != char + "\u0338"
        if not moves_before_last and not moves_behind_first:
            continue
        low, high = 0, len(ladder)  # the first step that does not sort before char
        while low < high:
            middle = (low + high) // 2
            if nfd(char + ladder[middle]) == char + ladder[middle]:
                high = middle
            else:
                low = middle + 1
        steps[ord(char)] = low + 1
    return steps


def normalisation():
    nfd, nfc = normalizers.NFD().normalize_str, normalizers.NFC().normalize_str
    hangul = range(0xAC00, 0xD7A4)
    decompositions = {ord(c): nfd(c) for c in ALL if ord(c) not in hangul and nfd(c) != c}
    compositions = {}
    for code, full in decompositions.items():
        if nfc(full) != chr(code):
            continue
        first, last = nfc(full[:-1]), full[-1]
        if len(first) == 1 and nfc(first + last) == chr(code):
            compositions[(ord(first), ord(last))] = code
    return combining_classes(nfd), decompositions, compositions


def rows(values, per_line, form):
    return "\n".join("    " + ", ".join(form(v) for v in values[i:i + per_line]) + ","
                     for i in range(0, len(values), per_line))


def generate():
    runs = class_runs()
    steps, decompositions, compositions = normalisation()
    step_runs, codes = [], sorted(steps)
    for code in codes:
        if step_runs and step_runs[-1][1] + 1 == code and step_runs[-1][2] == steps[code]:
            step_runs[-1][1] = code
        else:
            step_runs.append([code, code, steps[code]])
    flat = []
    for code in sorted(decompositions):
        flat += [code | len(decompositions[code]) << 24] + [ord(c) for c in decompositions[code]]
    version = lambda name: importlib.metadata.version(name)
    return f"""// Generated by scripts/gen_unicode_tables.py: do not edit.
// Classes: regex engine of tiktoken {version("tiktoken")} (Rust crate regex), equal to that of
// tokenizers {version("tokenizers")} (Oniguruma); the highest class bit is the Digits step of tokenizers.
// Normalisation: NFC and NFD of tokenizers {version("tokenizers")}.
#include "text/unicode_data.h"

namespace coppice::unicode_data {{

// clang-format off
namespace {{
constexpr std::uint32_t kClassRunArray[] = {{
{rows([c | v << 24 for c, v in runs], 10, "0x{:08x}".format)}
}};
constexpr CombiningRun kCombiningRunArray[] = {{
{rows(step_runs, 6, lambda r: "{" + f"0x{r[0]:04x}, 0x{r[1]:04x}, {r[2]}" + "}")}
}};
constexpr std::uint32_t kDecompositionArray[] = {{
{rows(flat, 10, "0x{:07x}".format)}
}};
constexpr Composition kCompositionArray[] = {{
{rows([(*k, v) for k, v in sorted(compositions.items())], 5, lambda r: "{" + ", ".join(f"0x{x:04x}" for x in r) + "}")}
}};
}}  // namespace
// clang-format on

std::span<const std::uint32_t> class_runs() {{
  return kClassRunArray;
}}
std::span<const CombiningRun> combining_runs() {{
  return kCombiningRunArray;
}}
std::span<const std::uint32_t> decompositions() {{
  return kDecompositionArray;
}}
std::span<const Composition> compositions() {{
  return kCompositionArray;
}}

}}  // namespace coppice::unicode_data
"""


if __name__ == "__main__":
    text = generate()
    if "--check" in sys.argv:
        sys.exit(0 if OUT.read_text() == text else f"{OUT}: differs from what the references say now")
    OUT.write_text(text)
    print(f"wrote {OUT}: {len(text)} bytes, {text.count(chr(10))} lines")
