#!/usr/bin/env bash
# Chromium and its driver, which one test looks at a report with; without them that test says that it did not run.
set -u
. "$(dirname "$0")/apt.sh"

there() { command -v chromium >/dev/null 2>&1 && command -v chromedriver >/dev/null 2>&1; }

there || apt_install chromium chromium-driver || true
there || echo "No Chromium: the test of the report in a browser is skipped. To run it:  sudo $(apt_command chromium chromium-driver)" >&2
