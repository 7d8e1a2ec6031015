"""The report in a real browser: headless Chromium (Debian's package `chromium`) loads, photographs and prints it."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from verl_dots import report

pytestmark = pytest.mark.long

SAMPLES = Path(__file__).resolve().parents[1] / "unit" / "samples" / "runs"

LOOK = """
<script>
window.addEventListener("error", event => { document.body.dataset.error = event.message; });
window.addEventListener("load", () => {
  document.querySelectorAll("details").forEach(part => { part.open = true; });
  const box = element => element.getBoundingClientRect();
  document.body.dataset.seen = JSON.stringify({
    images: [...document.images].map(image => [image.complete, image.naturalWidth, Math.round(box(image).width)]),
    width: window.innerWidth,
    needed: document.documentElement.scrollWidth,
    headings: [...document.querySelectorAll("h2")].map(heading => heading.textContent),
    resources: performance.getEntriesByType("resource").map(entry => entry.name.slice(0, 40)),
  });
});
</script>
"""
"""Added to a copy of the page to look at it from inside; the page itself has no script."""


def chromium(*arguments):
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    assert browser, "this test needs a browser: apt-get install chromium"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"]
    done = subprocess.run([browser, *flags, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    report.main([str(SAMPLES / "grpo"), str(SAMPLES / "dots_rr"), "--output", str(folder)])
    return folder / "report.html"


def seen(page, width):
    """What the browser made of the page at this width."""
    copy = page.with_name("looked_at.html")
    copy.write_text(page.read_text().replace("</body>", LOOK + "</body>"))
    dom = chromium(f"--window-size={width},900", "--dump-dom", copy.as_uri()).stdout
    assert "data-error" not in dom
    return json.loads(html.unescape(re.search(r'data-seen="([^"]*)"', dom)[1]))


@pytest.mark.parametrize("width", [1100, 500])
def test_every_figure_is_drawn_and_nothing_sticks_out(page, width):
    found = seen(page, width)
    assert len(found["images"]) == 7
    assert all(complete and natural > 300 and shown > 0.6 * min(width, 900) for complete, natural, shown in found["images"])
    assert found["needed"] <= found["width"]
    assert "Where the seconds go" in found["headings"]
    assert all(name.startswith("data:") for name in found["resources"])  # nothing was fetched


def test_no_script_errors_and_no_messages_on_the_console(page):
    done = chromium("--dump-dom", page.as_uri())
    assert "CONSOLE" not in done.stderr


def test_a_screenshot_shows_the_page(page):
    picture = page.with_name("screenshot.png")
    chromium("--window-size=1100,4000", f"--screenshot={picture}", page.as_uri())
    with Image.open(picture) as image:
        assert image.size == (1100, 4000)
        counts = dict((colour, count) for count, colour in image.convert("RGB").getcolors(maxcolors=1 << 24))
    shares = {colour: count / (1100 * 4000) for colour, count in counts.items()}
    assert 0.5 < shares[(255, 255, 255)] < 0.97  # a white page with something on it
    assert shares[(0x00, 0x72, 0xB2)] > 1e-4  # our run's colour
    assert len(counts) > 500


def test_it_prints(page):
    paper = page.with_name("report.pdf")
    chromium("--no-pdf-header-footer", f"--print-to-pdf={paper}", page.as_uri())
    data = paper.read_bytes()
    assert data.startswith(b"%PDF") and 2 <= len(re.findall(rb"/Type\s*/Page\b", data)) <= 8
