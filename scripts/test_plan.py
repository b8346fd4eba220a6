#!/usr/bin/env python3
"""The report of `coppice plan --html` in a real browser, and the pages that are written from the planner against the planner's output.

Without Chromium the screenshot is skipped, and says so; the rest runs."""
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def check_page(html):
    """Faults of a report: things that need a network, figures that do not say what they rest on."""
    faults = []
    for address in re.findall(r"""(?:src|href)=['"]([^'"]+)""", html):
        faults.append(f"refers to {address}")
    if "@import" in html or "url(" in html:
        faults.append("a style sheet loads something")
    figures = re.findall(r"<figure>(.*?)</figure>", html, re.S)
    if len(figures) < 4:
        faults.append(f"{len(figures)} figures")
    for i, figure in enumerate(figures):
        if "<svg" not in figure:
            faults.append(f"figure {i + 1} is empty")
        for kind in ("predicted", "measured"):
            if f"kind {kind}'" not in figure:
                faults.append(f"figure {i + 1} does not say what is {kind}")
    if re.search(r"\bnan\b|\binf\b", re.sub(r"<[^>]*>", " ", html), re.I) or re.search(r"=['\"]-?(nan|inf)", html):
        faults.append("a number is not finite")
    return faults


def rows_of_png(data):
    """Raw rows of an 8-bit RGB or RGBA image, unfiltered."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed = 8, b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + size]
        if kind == b"IHDR":
            width, height, depth, color = struct.unpack(">IIBB", body[:10])
        if kind == b"IDAT":
            packed += body
        at += size + 12
    pixel = {2: 3, 6: 4}[color]
    assert depth == 8
    raw, stride = zlib.decompress(packed), width * pixel
    previous, rows = bytearray(stride), []
    for y in range(height):
        line = bytearray(raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
        how = raw[y * (stride + 1)]
        for x in range(stride if how else 0):
            left = line[x - pixel] if x >= pixel else 0
            up, corner = previous[x], previous[x - pixel] if x >= pixel else 0
            if how == 1:
                line[x] = (line[x] + left) & 255
            elif how == 2:
                line[x] = (line[x] + up) & 255
            elif how == 3:
                line[x] = (line[x] + (left + up) // 2) & 255
            else:
                guess = left + up - corner
                a, b, c = abs(guess - left), abs(guess - up), abs(guess - corner)
                line[x] = (line[x] + (left if a <= b and a <= c else up if b <= c else corner)) & 255
        rows.append(line)
        previous = line
    return rows, pixel


def check_picture(png):
    """A rendered report has many colours, and ink on most of its height."""
    rows, pixel = rows_of_png(png)
    colors, inked = set(), 0
    for row in rows:
        line = {bytes(row[x:x + 3]) for x in range(0, len(row), pixel)}
        colors |= line
        inked += len(line) > 4
    faults = []
    if len(colors) < 100:
        faults.append(f"only {len(colors)} colours")
    if inked < len(rows) // 3:
        faults.append(f"only {inked} of {len(rows)} lines hold anything")
    return faults


def screenshot(page, picture):
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}",
                        "--window-size=1040,2200", "--host-resolver-rules=MAP * ~NOTFOUND", f"--screenshot={picture}", page.as_uri()],
                       check=True, timeout=600, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def fail(faults, what):
    for fault in faults:
        print(f"{what}: {fault}")
    return bool(faults)


def main():
    binary = sys.argv[1]
    failed = False
    for script in ("shipped_kernels.py", "next_hardware.py", "planner_page.py"):
        failed |= subprocess.run([sys.executable, str(ROOT / "scripts" / script), binary, "--check"]).returncode != 0
    with tempfile.TemporaryDirectory() as folder:
        page, picture = pathlib.Path(folder) / "plan.html", pathlib.Path(folder) / "plan.png"
        subprocess.run([binary, "plan", "kimi-k2", "--gpu", "h200,b200", "-tp", "8", "--batch", "1,8,64", "--drafter", "kimi-k2-dflash",
                        "--html", str(page)], check=True, stdout=subprocess.DEVNULL)
        html = page.read_text()
        failed |= fail(check_page(html), "report")
        # Planted faults: the checks see them.
        for old, new in (("kind measured'", "kind'"), ("<style>", "<style>@import 'x.css';"), ("<svg", "<!--svg"), ("<td>", "<td>nan</td><td>")):
            if not check_page(html.replace(old, new, 1)):
                failed = True
                print(f"the check of the report misses {new}")
        if CHROMIUM is None:
            print("no Chromium here: the screenshot is skipped (scripts/setup.sh --oracles installs it)")
            return 1 if failed else 77
        screenshot(page, picture)
        failed |= fail(check_picture(picture.read_bytes()), "screenshot")
        blank = pathlib.Path(folder) / "blank.html"
        blank.write_text("<!doctype html><title>blank</title>")
        screenshot(blank, picture)
        if not check_picture(picture.read_bytes()):
            failed = True
            print("the check of the screenshot passes a blank page")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
