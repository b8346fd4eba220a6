"""What compute-sanitizer printed, as records: read by sanitize_cuda.py.

The tool prints blocks: a line of its own, indented lines that belong to it, an empty line. No block is
dropped: one of an unknown kind is an error like any other, with its text.
"""
import pathlib
import re

PREFIX = "========="
TEXT_LINES = 40  # of a block that are kept
MOST_TEXTS = 20  # blocks of a case that are kept whole, one of each kind and place

ACCESS = re.compile(r"(Read|Write|Atomic) access at (.*?)(?:\+0x[0-9a-f]+)?(?: in (\S+?):(\d+))?(?: \[\d+ hazards?\])?$")
PLACE = re.compile(r"^\s+(?:at|Device Frame:) ?(.*?)(?:\+0x[0-9a-f]+)?(?: in (\S+?):(\d+))?$")
SUMMARY = re.compile(r"^(?:ERROR|RACECHECK|LEAK) SUMMARY: ")
KINDS = (
    ("race", r"(?:Error|Warning|Info): Race reported between "),
    ("untracked", r"Internal Sanitizer Error: .*while launching|Detected a failure to track a kernel launch"),
    ("api", r"Program hit "),
    ("application", r"Error: process didn't terminate|Target application|Error: (?:couldn't find exit|Target app|No attach)"
                    r"|The application may have hit"),
    ("launch", r"Launch #"),  # with more behind it where a filter is set: "Launch #3 (filtered: not in include list)"
    ("note", r"COMPUTE-SANITIZER$|Tracking kernels launched by child|Saved host backtrace"),
)

# Pairs of places that racecheck reports although they are ordered, and by what; 2025.3.1 alone reports those of ARRIVAL. Each kind
# is reported in a kernel of twenty lines too (docs/results/2026-11-30-h200-sanitizer.md).
LANE = "lane 0 arrives on an mbarrier for its warp, after __syncwarp"
ARRIVAL = "bar.arrive of the readers, bar.sync of the writers"
KNOWN = {
    ("bulk_copy_to_shared", "multiply_stage"): LANE,
    ("mla_clear_keys", "mla_store_weights"): LANE,
    ("ldmatrix_x4", "mla_single_clear"): LANE,
    ("cluster_store", "mla_single_softmax"): LANE,
    ("mla_start_other_values", "mla_store_weights"): ARRIVAL,
    ("mla_store_weights", "mla_tail_pass"): ARRIVAL,
    ("ldmatrix_x4", "mla_store_weights"): ARRIVAL,
}
# Other reports that are ordered: (what, all of these in the text), and by what.
KNOWN_TEXTS = (
    (r"Potential invalid __shared__ write of size 4 bytes$",
     ("coppice::kernels::cluster_store(", "coppice::kernels::mla_single_scores(", "coppice::kernels::mla_attention_single_sm90(",
      "is located in a block that might have already exited"),
     "the other block waits for these scores, all warps' arrivals on scores_full, before it ends"),
)


def function_of(text):
    """The bare name of a function as the tools print it, or as the compiler mangles it."""
    if text.startswith("_Z"):
        rest, name = text[2:].lstrip("NKV"), ""
        while number := re.match(r"\d+", rest):
            end = number.end() + int(number[0])
            name, rest = rest[number.end():end], rest[end:]
        return name or text[:40]
    plain = text.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    names = re.split(r"[<(\[]", plain)[0].split("::")[-1].split()
    return names[-1] if names else plain[:40]


def blocks(text):
    """The tool's blocks, each a list of lines without the prefix."""
    block = []
    for line in text.splitlines():
        if not line.startswith(PREFIX):
            continue
        line = line[len(PREFIX) + 1:].rstrip()
        if line and line[0] != " ":
            if block:
                yield block
            block = [line]
        elif line and block:
            block.append(line)
    if block:
        yield block


class Record:
    """One kind of block at one place (for a race: pair of places)."""

    def __init__(self, kind, what, places=(), files=(), text="", functions=()):
        self.kind, self.what, self.text, self.count = kind, what, text, 1
        self.places, self.files, self.functions = list(places), sorted(set(files)), list(functions)
        self.ordered = self.ordered_by()

    def key(self):
        return self.kind, self.what, tuple(self.places), self.ordered

    def ordered_by(self):
        """By what a report of racecheck is ordered nevertheless, or ''."""
        if self.kind == "race":
            return KNOWN.get(tuple(sorted(set(self.functions))), "")
        return next((why for what, parts, why in KNOWN_TEXTS
                     if re.match(what, self.what) and all(part in self.text for part in parts)), "")

    def known(self):
        return self.ordered

    def foreign(self):
        """Of a library's kernel: no line of ours, no name of ours."""
        return self.kind in ("race", "device") and bool(self.places) and not self.files and "coppice" not in self.text

    def as_json(self):
        return {"kind": self.kind, "what": self.what, "places": self.places, "files": self.files, "functions": self.functions,
                "count": self.count, "known": self.known(), "text": self.text}


def records_of(block):
    """The records of one block; a race gives one for each second place."""
    first, text = block[0], "\n".join(block[:TEXT_LINES])
    kind = next((name for name, pattern in KINDS if re.match(pattern, first)), "device")
    if SUMMARY.match(first) or kind == "note":
        return
    if kind == "race":
        accesses = [m for line in block if (m := ACCESS.search(line))]
        named = [f"{m[1]} {function_of(m[2])}" + (f" {pathlib.Path(m[3]).name}:{m[4]}" if m[3] else "") for m in accesses]
        for i in range(1, max(len(accesses), 2)):
            pair = [n for j, n in enumerate(named) if j in (0, i)]
            some = [m for j, m in enumerate(accesses) if j in (0, i)]
            yield Record(kind, "race, " + first.split(":")[0].lower(), pair, [pathlib.Path(m[3]).name for m in some if m[3]], text,
                         [function_of(m[2]) for m in some])
        return
    what = re.sub(r"0x[0-9a-f]+", "0x..", first)[:200]
    if kind == "untracked" and (launch := re.search(r"launching (.+?) and didn't track", first)):
        yield Record(kind, "a launch that the tool did not track", [function_of(launch[1])], text=text)
        return
    place = next((m for line in block[1:] if (m := PLACE.match(line))), None) if kind == "device" else None
    if place is None:
        yield Record(kind, what, text=text)
        return
    name = function_of(place[1])
    where = f"{name} {pathlib.Path(place[2]).name}:{place[3]}" if place[2] else name
    yield Record(kind, what, [where], [pathlib.Path(place[2]).name] if place[2] else [], text, [name])


def unprinted_in(text):
    """How many reports the tool counted and did not print, for its limit; launches count as reports."""
    left = [int(n) for n in re.findall(r"(\d+) errors? (?:was|were) not printed", text)]
    for shown, errors, warnings in re.findall(r"(\d+) hazards? displayed \((\d+) errors?, (\d+) warnings?\)", text):
        left.append(int(errors) + int(warnings) - int(shown))
    return max(0, *left, 0)


class Result:
    """What one case under one tool gave. code: the exit status, 124 for one that was ended."""

    def __init__(self, tool, run, case, text, code, seconds):
        self.tool, self.run, self.case, self.code, self.seconds = tool, run, case, code, seconds
        summaries = [b[0] for b in blocks(text) if SUMMARY.match(b[0]) and "not printed" not in b[0]]
        self.summary = summaries[-1] if summaries else ""
        self.skipped = "[  SKIPPED ]" in text or "[==========] 0 tests" in text
        # Launches by kernel, and by instance of its template as the tool names it (mangled with a filter).
        self.launches, self.variants, self.foreign, found = {}, {}, 0, {}
        for block in blocks(text):
            for record in records_of(block):
                if record.kind == "launch":
                    for name in re.findall(r"Kernel: *(.*)", record.text):
                        self.variants[name] = self.variants.get(name, 0) + 1
                        self.launches[function_of(name)] = self.launches.get(function_of(name), 0) + 1
                elif record.foreign():
                    self.foreign += 1
                elif record.key() in found:
                    found[record.key()].count += 1
                else:
                    found[record.key()] = record
        self.records = list(found.values())
        counted = sum(int(n) for n in re.findall(r": (\d+) (?:errors?|hazards?)", self.summary)[:1])
        self.unprinted = unprinted_in(text)
        if counted and not self.records and not self.foreign and not self.launches:
            self.records.append(Record("unread", self.summary, text="\n".join(text.splitlines()[-TEXT_LINES:])))
        for record in self.records[MOST_TEXTS:]:
            record.text = ""
        self.complaints = re.findall(r"^(?!=====).*(?:ailure|rror|FAILED|what\(\)).*$", text, re.M)[:6] if code else []

    def errors(self):
        return [r for r in self.records if r.kind not in ("untracked", "application") and not r.known()]

    def state(self):
        """errors, did not end, skipped, not tracked, test failed, not printed, known or clean: the worst that holds."""
        kinds = {r.kind for r in self.records}
        if self.errors():
            return "errors"
        if self.code == 124 or not self.summary:
            return "did not end"
        if self.skipped:
            return "skipped"
        if "untracked" in kinds:
            return "not tracked"
        if self.code != 0 or "application" in kinds:
            return "test failed"
        if self.unprinted:
            return "not printed"
        return "known" if self.records else "clean"

    def as_json(self):
        return {"tool": self.tool, "run": self.run, "case": self.case, "state": self.state(), "code": self.code,
                "seconds": round(self.seconds, 1), "summary": self.summary, "foreign": self.foreign, "launches": self.launches,
                "variants": self.variants, "unprinted": self.unprinted,
                "complaints": self.complaints, "records": [r.as_json() for r in self.records]}
