#!/usr/bin/env python3
"""sanitize_cuda.py against a tool and binaries of this file's own: what each planted output becomes, in the results, in the table
and in the exit code; time limits, children that outlive them, --resume, the page. Needs no GPU."""
import contextlib
import io
import json
import pathlib
import stat
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import sanitize_cuda  # noqa: E402
from sanitizer_output import Result  # noqa: E402

CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
WITH_PLACE = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at coppice::kernels::rotate_bf16x8(const coppice::kernels::Bf16x8 &, const float *)+0x40 in rope.cuh:21
=========     by thread (3,0,0) in block (0,0,0)
=========     Access to 0x7f0000000000 is out of bounds
=========         Device Frame: coppice::kernels::mla_rope_kernel(coppice::kernels::MlaRopeParams)+0x30 in mla_rope.cuh:54
=========
========= Invalid __global__ read of size 4 bytes
=========     at coppice::kernels::rotate_bf16x8(const coppice::kernels::Bf16x8 &, const float *)+0x40 in rope.cuh:21
=========     by thread (4,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 2 errors
"""
WITHOUT_PLACE = """========= COMPUTE-SANITIZER
========= Some complaint that nobody has seen before
=========     Saved host backtrace up to driver entry point at error
=========
========= ERROR SUMMARY: 1 error
"""
API = """========= COMPUTE-SANITIZER
========= Program hit cudaErrorInvalidValue (error 1) due to "invalid argument" on CUDA API call to cudaFree.
=========     Saved host backtrace up to driver entry point at error
=========         Host Frame: main in app.cpp:3
=========
========= ERROR SUMMARY: 1 error
"""
UNTRACKED = "".join(f"""========= Internal Sanitizer Error: The Sanitizer encountered an error while launching coppice::kernels::embed_kernel and\
 didn't track the launch. Errors might go undetected. (Unable to allocate enough memory to perform the requested operation)
=========     Saved host backtrace {i}
=========
""" for i in range(3)) + "========= ERROR SUMMARY: 3 errors\n"
RACE = """========= Error: Race reported between Write access at coppice::kernels::bulk_copy_to_shared(void *)+0xc00 in bulk_copy.cuh:21
=========     and Read access at unsigned int coppice::kernels::multiply_stage<1, 1, 2>(const unsigned char *)+0x350 in {}:80 [248 hazards]
=========     and Read access at unsigned int coppice::kernels::{}<1, 1, 2>(const unsigned char *)+0x380 in {}:82 [8 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
KNOWN_RACE = RACE.format("moe_multiply.cuh", "multiply_stage", "moe_multiply.cuh")
NEW_RACE = RACE.format("moe_multiply.cuh", "other_stage", "moe_multiply.cuh")
FOREIGN_RACE = """========= Error: Race reported between Read access at nvjet_sm90_tss_16x64_64x16_1x4_h_bz_TNN+0x80
=========     and Write access at nvjet_sm90_tss_16x64_64x16_1x4_h_bz_TNN+0x90 [48 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
CLUSTER = """========= Potential invalid __shared__ read of size 16 bytes
=========     at coppice::kernels::cluster_load(unsigned int)+0x170 in cluster.cuh:35
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x1000400 is located in a block that might have already exited
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
# As printed for single tokens of MLA on 30 November 2026 by 2026.4, shortened.
SENT_SCORES = """========= Potential invalid __shared__ write of size 4 bytes
=========     at coppice::kernels::cluster_store(unsigned int, unsigned int)+0x5600 in cluster.cuh:41
=========     by thread (32,0,0) in block (0,0,0)
=========         Device Frame: coppice::kernels::mla_single_scores(coppice::kernels::MlaSingleShared *, unsigned int)+0x5470 in mla_single.cuh:212
=========         Device Frame: coppice::kernels::mla_attention_single_sm90(coppice::kernels::MlaAttentionParams)+0x1fd0 in mla_single.cuh:498
=========     Address 0x1036840 is located in a block that might have already exited
=========
"""
ONE_HAZARD = "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n"
TWO_HAZARDS = "========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)\n"
# As printed for the commit test by 2026.4 with --dump-kernel-launches, shortened.
LAUNCHES = """========= COMPUTE-SANITIZER
========= Launch #1 (filtered: not in include list)
=========   Kernel: _ZN7coppice7kernels18accept_path_kernelENS0_16AcceptPathParamsE
=========   Grid:   (1, 1, 1)
=========   Block:  (32, 1, 1)
=========   Stream: 0x0
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cuLaunchKernelEx [0x39fc2f] in libcuda.so.1
=========
========= Launch #2 (filtered: not in include list)
=========   Kernel: _ZN7coppice7kernels14move_kv_kernelILi256EEEvNS0_18MoveKvKernelParamsE
=========   Grid:   (4, 3, 1)
=========
========= Launch #3 (filtered: not in include list)
=========   Kernel: _ZN7coppice7kernels43_GLOBAL__N__a30cb87a_10_measure_cu_2c55775519fill_uniform_kernelI13__nv_bfloat16EEvPT_mmf
=========   Grid:   (4096, 1, 1)
=========
========= Launch #4 (filtered: not in include list)
=========   Kernel: _ZN7coppice7kernels14move_kv_kernelILi256EEEvNS0_18MoveKvKernelParamsE
=========   Grid:   (1, 1, 1)
=========
"""
CRASHED = """========= COMPUTE-SANITIZER
========= Error: process didn't terminate successfully
========= Target application returned an error
========= ERROR SUMMARY: 0 errors
"""


def state(text, code=0, tool="memcheck"):
    return Result(tool, "run", "case", text, code, 1.0).state()


class OutputTest(unittest.TestCase):
    def test_states(self):
        self.assertEqual(state(CLEAN), "clean")
        for text in (WITH_PLACE, WITHOUT_PLACE, API, NEW_RACE, CLUSTER):
            self.assertEqual(state(text), "errors", text)
        self.assertEqual(state(UNTRACKED), "not tracked")
        self.assertEqual(state(KNOWN_RACE), "known")
        self.assertEqual(state(FOREIGN_RACE), "clean")
        self.assertEqual(state(CRASHED, 1), "test failed")
        self.assertEqual(state(CRASHED), "test failed")  # the tool's own exit status may be 0
        self.assertEqual(state(CLEAN, 1), "test failed")
        self.assertEqual(state("========= COMPUTE-SANITIZER\n", 0), "did not end")
        self.assertEqual(state(CLEAN, 124), "did not end")
        self.assertEqual(state("[  SKIPPED ] a.b\n" + CLEAN), "skipped")
        self.assertEqual(state("[==========] 0 tests ran.\n" + CLEAN), "skipped")
        self.assertEqual(state("========= ERROR SUMMARY: 5 errors\n"), "errors")  # nothing of them was printed
        self.assertEqual(state("========= ERROR SUMMARY: 159 errors were not printed. Use --print-limit\n" + WITH_PLACE), "errors")

    def test_errors_are_kept_once_with_place_times_and_text(self):
        (record,) = Result("memcheck", "r", "c", WITH_PLACE, 1, 1).as_json()["records"]
        self.assertEqual(record["places"], ["rotate_bf16x8 rope.cuh:21"])
        self.assertEqual(record["count"], 2)
        self.assertIn("by thread (3,0,0)", record["text"])
        (record,) = Result("memcheck", "r", "c", UNTRACKED, 0, 1).as_json()["records"]
        self.assertEqual((record["places"], record["count"]), (["embed_kernel"], 3))
        (record,) = Result("memcheck", "r", "c", API, 0, 1).as_json()["records"]
        self.assertIn("Host Frame: main in app.cpp:3", record["text"])
        self.assertEqual([r["known"] != "" for r in Result("racecheck", "r", "c", NEW_RACE, 0, 1).as_json()["records"]], [True, False])

    def test_launches_are_counted(self):
        text = "========= Launch #1\n=========     Kernel: coppice::kernels::embed_kernel(int)\n=========\n" * 2 + CLEAN
        result = Result("memcheck", "r", "c", text, 0, 1)
        self.assertEqual((result.launches, result.state()), ({"embed_kernel": 2}, "clean"))

    def test_launches_are_counted_by_instance_too(self):
        result = Result("coverage", "r", "c", LAUNCHES + "========= ERROR SUMMARY: 4 errors\n", 0, 1).as_json()
        self.assertEqual(result["variants"]["_ZN7coppice7kernels14move_kv_kernelILi256EEEvNS0_18MoveKvKernelParamsE"], 2)
        self.assertEqual(len(result["variants"]), 3)

    def test_launches_of_filtered_kernels_are_launches_and_no_errors(self):
        result = Result("coverage", "r", "c", LAUNCHES + "========= ERROR SUMMARY: 4 errors\n", 0, 1)
        self.assertEqual(result.launches, {"accept_path_kernel": 1, "move_kv_kernel": 2, "fill_uniform_kernel": 1})
        self.assertEqual((result.state(), result.records), ("clean", []))
        text = LAUNCHES + ("========= ERROR SUMMARY: 39 errors\n"
                           "========= ERROR SUMMARY: 35 errors were not printed. Use --print-limit option to adjust\n")
        result = Result("coverage", "r", "c", text, 0, 1)
        self.assertEqual((result.state(), result.unprinted), ("not printed", 35))

    def test_scores_sent_to_a_block_that_waits_for_them_are_known_and_nothing_else_is(self):
        self.assertEqual(state(SENT_SCORES + ONE_HAZARD, tool="racecheck"), "known")
        for old, new in (("mla_attention_single_sm90", "another_kernel"), ("mla_single_scores", "another_function"),
                         ("cluster_store(", "cluster_load("), ("that might have already exited", "of another kind"),
                         ("__shared__ write", "__shared__ read"), ("of size 4 bytes", "of size 16 bytes")):
            other = SENT_SCORES.replace(old, new)
            self.assertNotEqual(other, SENT_SCORES)
            self.assertEqual(state(other + ONE_HAZARD, tool="racecheck"), "errors", new)
            for text in (SENT_SCORES + other, other + SENT_SCORES):  # neither hides behind the other, whose place is the same
                self.assertEqual(state(text + TWO_HAZARDS, tool="racecheck"), "errors", new)

    def test_reports_that_were_counted_and_not_printed_are_not_known(self):
        text = SENT_SCORES + "========= RACECHECK SUMMARY: 1 hazard displayed (3 errors, 0 warnings)\n"
        result = Result("racecheck", "r", "c", text, 0, 1)
        self.assertEqual((result.state(), result.unprinted), ("not printed", 2))


TOOL = """#!/usr/bin/env python3
import os, signal, subprocess, sys, time
if "--help" in sys.argv:
    print("--dump-kernel-launches")
    sys.exit(0)
here = os.path.dirname(os.path.abspath(__file__))
case = os.environ.get("COPPICE_OPS", "") or sys.argv[-1]
open(os.path.join(here, "calls"), "a").write(sys.argv[2] + " " + case + "\\n")
if "slow" in case:
    child = subprocess.Popen(["sleep", "60"])
    open(os.path.join(here, "child"), "w").write(str(child.pid))
    time.sleep(60)
if "killed" in case:
    print("========= COMPUTE-SANITIZER", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
for line in open(os.path.join(here, "outputs")).read().split("#####"):
    name, _, text = line.partition("\\n")
    if name and name in case:
        print(text)
        sys.exit(0)
print(open(os.path.join(here, "clean")).read())
"""
OPS = "#!/bin/sh\nprintf 'case embed slow\\ncase embed killed\\ncase embed fine\\ncase mla_rope place\\ncase silu_mul fine\\n'\n"


class RunTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name)
        for name, text in (("sanitizer", TOOL), ("ops_op_cases_test", OPS)):
            (self.path / name).write_text(text)
            (self.path / name).chmod(0o755 | stat.S_IXUSR)
        (self.path / "clean").write_text(CLEAN)
        (self.path / "outputs").write_text("#####place\n" + WITH_PLACE)
        self.saved = sanitize_cuda.RUNS, sanitize_cuda.KERNELS
        sanitize_cuda.RUNS = {"op embed": sanitize_cuda.op("embed "), "op mla_rope": sanitize_cuda.op("mla_rope "),
                              "op silu_mul": sanitize_cuda.op("silu_mul ")}
        sanitize_cuda.KERNELS = {"embed_kernel": ["op embed"], "mla_rope_kernel": ["op mla_rope"],
                                 "silu_mul_kernel": ["op silu_mul"]}

    def tearDown(self):
        sanitize_cuda.RUNS, sanitize_cuda.KERNELS = self.saved
        self.folder.cleanup()

    def run_script(self, *flags):
        """Exit code, output."""
        out = io.StringIO()
        argv, sys.argv = sys.argv, ["sanitize_cuda.py", str(self.path), "--sanitizer", str(self.path / "sanitizer"),
                                    "--logs", str(self.path / "logs"), "--jobs", "3", *flags]
        try:
            with contextlib.redirect_stdout(out):
                code = sanitize_cuda.main()
        finally:
            sys.argv = argv
        return code, out.getvalue()

    def calls(self):
        return (self.path / "calls").read_text().splitlines()

    def states(self, tool):
        return {p["case"]: p["state"] for p in sanitize_cuda.results_in(self.path / "logs")[tool]}

    def test_a_case_that_is_slow_or_crashes_costs_no_other_case(self):
        begin = time.time()
        code, out = self.run_script("--tools", "memcheck", "--limit", "2", "--each")
        self.assertLess(time.time() - begin, 30)
        self.assertEqual(code, 1)
        rows = "1,7,17,33,129 rows"
        self.assertEqual(self.states("memcheck"), {
            f"embed slow, {rows}": "did not end", f"embed killed, {rows}": "did not end", f"embed fine, {rows}": "clean",
            f"mla_rope place, {rows}": "errors", f"silu_mul fine, {rows}": "clean"})
        child = int((self.path / "child").read_text())
        alive = pathlib.Path(f"/proc/{child}/stat")
        self.assertTrue(not alive.exists() or alive.read_text().split()[2] == "Z")  # the tool's child was ended with it
        table = {line.split()[0]: line for line in out.splitlines() if "_kernel " in line}
        self.assertIn("did not end (2 of 3)", table["embed_kernel"])
        self.assertIn("2 errors", table["mla_rope_kernel"])
        self.assertTrue(table["silu_mul_kernel"].rstrip().endswith("clean"))

    def test_the_cases_of_a_run_share_a_process_and_its_end(self):
        self.run_script("--tools", "memcheck", "--only", "op embed", "--limit", "2")
        self.assertEqual(self.calls(), ["memcheck embed slow;embed killed;embed fine"])
        self.assertEqual(self.states("memcheck"), {"3 cases, 1,7,17,33,129 rows": "did not end"})

    def test_a_clean_run_ends_with_0_and_racecheck_takes_a_process_for_each_number_of_rows(self):
        code, _ = self.run_script("--tools", "memcheck,racecheck", "--only", "silu_mul")
        self.assertEqual(code, 0)
        self.assertEqual(len(self.calls()), 1 + 5)

    def test_runs_may_take_all_numbers_of_rows_or_all_tests_in_one_process(self):
        sanitize_cuda.RUNS["op silu_mul"].together = True
        code, _ = self.run_script("--tools", "memcheck,racecheck", "--only", "silu_mul")
        self.assertEqual((code, len(self.calls())), (0, 1 + 1))
        (self.path / "some_test").write_text("#!/bin/sh\nprintf 'Suite.\n  one\n  two\n'\n")
        (self.path / "some_test").chmod(0o755)
        both, apart = [("2 tests", ["--gtest_filter=Suite.*"], {})], [(f"Suite.{name}", [f"--gtest_filter=Suite.{name}"], {})
                                                                      for name in ("one", "two")]
        for together in (False, True):
            sanitize_cuda.RUNS["tests"] = sanitize_cuda.kernel_test("some_test", "Suite.*", together=together)
            self.assertEqual(sanitize_cuda.cases_of(self.path, "memcheck", "tests"), both)
            self.assertEqual(sanitize_cuda.cases_of(self.path, "racecheck", "tests"), both if together else apart)
            self.assertEqual(sanitize_cuda.cases_of(self.path, "memcheck", "tests", each=True), apart)

    def test_coverage_may_be_one_of_the_tools(self):
        launch = "========= Launch #1\n=========     Kernel: coppice::kernels::silu_mul_kernel(int)\n=========\n"
        (self.path / "outputs").write_text("#####silu_mul\n" + launch + CLEAN)
        code, out = self.run_script("--tools", "memcheck,coverage", "--only", "silu_mul")
        self.assertEqual(code, 0)
        self.assertIn("op silu_mul 1", out)
        self.assertEqual(self.states("coverage"), {"silu_mul fine, 1,7,17,33,129 rows": "clean"})
        sanitize_cuda.KERNELS["embed_kernel"] = ["op silu_mul"]
        code, out = self.run_script("--tools", "memcheck,coverage", "--only", "silu_mul")
        self.assertEqual(code, 1)
        self.assertIn("NOT IN op silu_mul", out)

    def test_results_of_before_are_read_and_claim_no_more_than_they_know(self):
        self.run_script("--tools", "memcheck,racecheck", "--only", "silu_mul;mla_rope")
        for path in (self.path / "logs").glob("*/*.json"):
            result = json.loads(path.read_text())
            for field in ("watched", "unprinted", "launches", "variants", "foreign"):
                del result[field]
            path.write_text(json.dumps(result))
        sanitize_cuda.RUNS["op silu_mul"].focus = ["silu_mul_kernel"]  # whether it had one then is not known
        text = sanitize_cuda.page_of(sanitize_cuda.results_in(self.path / "logs"), ["memcheck", "racecheck"])
        self.assertIn("| `silu_mul_kernel` | clean | not covered |", text)
        self.assertIn("| `mla_rope_kernel` | 2 errors | 10 errors |", text)

    def test_coverage_names_the_run_that_does_not_reach_its_kernel(self):
        launch = "========= Launch #{}\n=========     Kernel: void coppice::kernels::{}<4>(int)\n=========\n"
        (self.path / "outputs").write_text(
            "#####mla_rope\n" + launch.format(1, "embed_kernel") + CLEAN +
            "#####silu_mul\n" + "".join(launch.format(i, "silu_mul_kernel") for i in range(3)) + CLEAN)
        code, out = self.run_script("--coverage", "--only", "mla_rope;silu_mul")
        table = {line.split()[0]: line for line in out.splitlines() if "_kernel " in line}
        self.assertEqual(code, 1)
        self.assertIn("NOT IN op mla_rope", table["mla_rope_kernel"])
        self.assertIn("op silu_mul 3", table["silu_mul_kernel"])
        code, _ = self.run_script("--coverage", "--only", "silu_mul")
        self.assertEqual(code, 0)
        self.assertEqual(set(self.states("coverage").values()), {"clean"})

    def test_a_kernel_that_no_launch_of_its_runs_has_is_not_called_clean(self):
        self.run_script("--tools", "memcheck", "--only", "silu_mul;mla_rope")
        launch = "========= Launch #1 (filtered: not in include list)\n=========   Kernel: _ZN7coppice7kernels{}Ei\n=========\n"
        summary = "========= ERROR SUMMARY: 1 error\n"
        (self.path / "outputs").write_text("#####silu_mul\n" + launch.format("12embed_kernel") + summary +
                                           "#####mla_rope\n" + launch.format("15mla_rope_kernel") + summary)
        self.run_script("--coverage", "--only", "silu_mul;mla_rope")
        text = sanitize_cuda.page_of(sanitize_cuda.results_in(self.path / "logs"), ["memcheck"])
        self.assertIn("| `silu_mul_kernel` | not reached |", text)
        self.assertIn("| `mla_rope_kernel` | 2 errors |", text)
        self.assertIn("`mla_rope_kernel` 1, `silu_mul_kernel` 0.", text)

    def test_a_kernel_that_racecheck_was_not_kept_to_is_not_covered_by_the_run(self):
        sanitize_cuda.RUNS["op silu_mul"].focus = ["another_kernel"]
        self.run_script("--tools", "memcheck,racecheck", "--only", "silu_mul")
        text = sanitize_cuda.page_of(sanitize_cuda.results_in(self.path / "logs"), ["memcheck", "racecheck"])
        self.assertIn("| `silu_mul_kernel` | clean | not covered |", text)

    def test_the_table_says_what_was_not_printed(self):
        (self.path / "outputs").write_text("#####silu_mul\n========= RACECHECK SUMMARY: 0 hazards displayed (9 errors, 0 warnings)\n"
                                           "========= COMPUTE-SANITIZER\n")
        self.run_script("--tools", "racecheck", "--only", "silu_mul")
        text = sanitize_cuda.page_of(sanitize_cuda.results_in(self.path / "logs"), ["racecheck"])
        self.assertIn("| `silu_mul_kernel` | 0 known, 45 not printed |", text)

    def test_resume_goes_on_with_what_did_not_end(self):
        self.run_script("--tools", "memcheck", "--limit", "1", "--each", "--only", "op embed")
        self.assertEqual(len(self.calls()), 3)
        self.run_script("--tools", "memcheck", "--limit", "1", "--each", "--only", "op embed", "--resume")
        self.assertEqual(sorted(self.calls()[3:]), ["memcheck embed killed", "memcheck embed slow"])

    def test_a_report_in_a_function_of_one_kernel_is_of_that_kernel_alone(self):
        sanitize_cuda.KERNELS = {name: ["op silu_mul"] for name in ("moe_experts_kernel", "moe_prepare_kernel", "moe_combine_kernel")}
        (self.path / "outputs").write_text("#####silu_mul\n" + KNOWN_RACE)
        self.run_script("--tools", "racecheck", "--only", "silu_mul")
        text = sanitize_cuda.page_of(sanitize_cuda.results_in(self.path / "logs"), ["racecheck"])
        self.assertIn("| `moe_experts_kernel` | 10 known |", text)
        self.assertIn("| `moe_prepare_kernel`, `moe_combine_kernel` | clean |", text)
        (self.path / "outputs").write_text("#####silu_mul\n" + RACE.format("moe_multiply.cuh", "read_list", "moe_work_list.cuh"))
        self.run_script("--tools", "racecheck", "--only", "silu_mul")
        text = sanitize_cuda.page_of(sanitize_cuda.results_in(self.path / "logs"), ["racecheck"])
        self.assertIn("| `moe_experts_kernel`, `moe_prepare_kernel`, `moe_combine_kernel` | 5 errors |", text)  # any kernel of the folder

    def test_what_was_not_begun_is_not_clean(self):
        code, out = self.run_script("--tools", "memcheck", "--only", "silu_mul", "--total", "0")
        self.assertEqual(code, 1)
        self.assertIn("not begun", out)
        self.assertIn("not covered", out)

    def test_the_page_is_written_from_the_results(self):
        self.run_script("--tools", "memcheck", "--only", "silu_mul;mla_rope")
        page = self.path / "page.md"
        page.write_text("before\n" + "\nold\n".join(sanitize_cuda.MARKS) + "\nafter\n")
        self.run_script("--tools", "memcheck,racecheck", "--page", str(page))
        text = page.read_text()
        self.assertIn("| `silu_mul_kernel` | clean | not covered |", text)
        self.assertIn("| `mla_rope_kernel` | 2 errors | not covered |", text)
        self.assertIn("rotate_bf16x8 rope.cuh:21", text)
        self.assertTrue(text.startswith("before\n") and text.endswith("after\n") and "old" not in text)
        page.write_text("no marks")
        with self.assertRaises(SystemExit):
            self.run_script("--page", str(page))

    def test_racecheck_and_initcheck_run_without_cublas(self):
        env = sanitize_cuda.without_cublas(self.path / "logs")
        folder = pathlib.Path(env.split(":")[0])
        self.assertEqual([f.name for f in folder.iterdir()], ["libcublasLt.so.13"])
        self.assertEqual((folder / "libcublasLt.so.13").stat().st_size, 0)


if __name__ == "__main__":
    unittest.main()
