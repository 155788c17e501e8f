"""Take the page's pictures for the documentation: python docs/screenshots.py PAGE (needs Chromium)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "report"))
from browser import browser

if __name__ == "__main__":
    with browser() as page:
        for theme in ("light", "dark"):
            page.look(dark=theme == "dark", width=1180, height=1650)
            page.open(Path(sys.argv[1]))
            page.screenshot(Path(__file__).parent / "images" / f"report-{theme}.png")
